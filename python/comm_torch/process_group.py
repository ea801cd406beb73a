"""The process group "comm"."""

import datetime
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import devices, membership
from . import tensors as t
from ._comm import ProcessGroup as _Group
from .devices import or_on_device
from .errors import CommError
from .work import ENDED, work

groups = weakref.WeakSet()


class CommProcessGroup(dist.ProcessGroup):
    """A group of ranks whose CPU tensors comm moves and reduces.

    Tensors on GPUs are left to PyTorch's NCCL backend, whose group is created for the first of them.

    Collectives of a group take effect in the order in which they are called, on every rank. One of
    several threads may call at a time.
    """

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    supports_reconfigure = True
    supports_abort_hooks = True
    supports_completion_hooks = False
    supports_window = False

    def __init__(self, store, rank, size, timeout, name="comm", enable_reconfigure=False, subgroup=None):
        """`subgroup` has the name of the group and its members' ranks in the world, or is None for the world."""
        super().__init__(rank, size)
        self._name = name
        self._timeout = timeout.total_seconds()
        self._store = store
        self._nccl_group = None
        self._rank, self._size = rank, size
        self._sequence = 0
        self._handle = membership.new_handle()
        self._uuids = set()
        self._abort_hooks = {}
        self._is_timed = False
        self._group = membership.NotConnected()
        if not enable_reconfigure:
            self._group = _Group(store, rank, size, self._timeout, subgroup, self._abort_hooks)
        self._members = None if subgroup is None else subgroup[1]
        self._group_name = self._group_desc = ""
        # The operations and tensors of calls that get one handle together, or None.
        self._coalesced = None
        groups.add(self)

    # The group

    @property
    def _device_types(self):
        return [devices.CPU, devices.CUDA] if devices.is_available() else [devices.CPU]

    def _device_group(self, device):
        """Returns the group for tensors on this device, or None."""
        if device.type != "cuda" or not devices.is_available():
            return None
        if self._nccl_group is None:
            timeout = datetime.timedelta(seconds=self._timeout)
            self._nccl_group = devices.nccl_group(self._store, self._rank, self._size, timeout)
            if self._is_timed:
                self._nccl_group._enable_collectives_timing()
        return self._nccl_group

    def getBackendName(self):
        # PyTorch looks for its own implementation behind the names of its backends.
        return "comm"

    def name(self):
        return "comm"

    def setGroupName(self, name):
        self._group_name = name

    def getGroupName(self):
        return self._group_name

    def setGroupDesc(self, description):
        self._group_desc = description

    def getGroupDesc(self):
        return self._group_desc

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    def _get_backend(self, device):
        group = self._device_group(device)
        return self if group is None else group._get_backend(device)

    def _start_coalescing(self, device):
        """Makes the calls up to the end get one handle. Each begins when it is made."""
        group = self._device_group(device)
        if group is not None:
            return group._start_coalescing(device)
        self._coalesced = [], []

    def _end_coalescing(self, device):
        group = self._device_group(device)
        if group is not None:
            return group._end_coalescing(device)
        (operations, tensors), self._coalesced = self._coalesced, None
        return work(operations, tensors, self._sequence, self._is_timed)

    def _get_backend_name(self):
        return "comm"

    def set_timeout(self, timeout):
        self._timeout = timeout.total_seconds()
        if self._nccl_group is not None:
            self._nccl_group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _enable_collectives_timing(self):
        """Lets the handles of later calls say how long these took (`_get_duration`)."""
        self._is_timed = True
        if self._nccl_group is not None:
            self._nccl_group._enable_collectives_timing()

    def register_abort_hook(self, hook_id, hook):
        """Has `hook()` called when a collective finds that the group has failed, before its error is
        known to anyone, and before `abort`. It may be called more than once for one failure, on any
        thread, and must not call the group."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id):
        self._abort_hooks.pop(hook_id, None)

    def register_pre_hook(self, hook_id, hook):
        """Raises an error: PyTorch calls such hooks only for backends in C++."""
        raise RuntimeError("PyTorch calls hooks before and after calls only for backends that are written in C++")

    register_post_hook = register_pre_hook

    def get_group_store(self):
        return self._store

    def eager_connect_single_device(self, device):
        """Does nothing: a group is connected when it is created."""

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """Returns the group of these ranks, which have the order of the list, or None on all others."""
        if self._rank not in ranks:
            return None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        timeout = timeout or datetime.timedelta(seconds=self._timeout)
        members = ranks if self._members is None else [self._members[rank] for rank in ranks]
        place = ranks.index(self._rank), len(ranks)
        group = CommProcessGroup(store, *place, timeout, self._name, subgroup=(group_name, members))
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "undefined")
        return group

    def supports_tensor_alloc(self, device):
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size, *, dtype, device):
        """Returns a tensor of zeros with one dimension, which other ranks of the host read in place.
        It may outlive the group."""
        if not self.supports_tensor_alloc(device):
            raise t.DeviceTensor(device)
        return t.over(self._group.allocate(size * dtype.itemsize), dtype)

    def abort(self):
        self._group.call_abort_hooks()
        if self._nccl_group is not None:
            self._nccl_group.abort()
        self._group.abort("the process group was aborted")

    def shutdown(self):
        if self._nccl_group is not None:
            self._nccl_group.shutdown()
        self._group.shutdown()

    def get_error(self):
        """Returns why the group has failed. A group that this process has aborted has not."""
        kind = self._group.failure()
        if kind is None:
            return c10d.ErrorType.SUCCESS
        return c10d.ErrorType.TIMEOUT if kind == "timeout" else c10d.ErrorType.COMM_ERROR

    def get_reconfigure_handle(self):
        return self._handle

    def reconfigure(self, opts):
        """Leaves the group, ends its pending operations, and connects the members of a new one,
        which find each other through the same store. It has ended when it returns."""
        rank, size = membership.place(self._handle, opts.handles)
        if self._nccl_group is not None:
            raise RuntimeError("a group that has had tensors on a GPU cannot be reconfigured")
        if opts.uuid in self._uuids:
            raise RuntimeError(f"the uuid {opts.uuid} was already used for another group of this process")
        self._uuids.add(opts.uuid)
        if self._group.is_pending():
            self._group.abort("the group is reconfigured while operations are pending")
        self._group.shutdown()
        self._group = membership.NotConnected()
        seconds = self._timeout if opts.timeout is None else opts.timeout.total_seconds()
        store = dist.PrefixStore(f"reconfigure/{opts.uuid}", self._store)
        # Its members may be processes that have no rank in the world.
        self._group, self._members = _Group(store, rank, size, seconds, None, self._abort_hooks), None
        self._rank, self._size, self._sequence = rank, size, 0
        return work([], [])

    # Operations

    def _run(self, opts, tensors, finish, event, *inputs):
        """Returns how a collective is run: the seconds until its deadline, whether the caller goes on
        before it has ended, the tensors that it uses, and the function that copies its results, or
        None. `event` names it to the profiler, which is also told of its inputs."""
        seconds = opts.timeout.total_seconds()
        if seconds < 0:
            seconds = self._timeout
        asynchronous = getattr(opts, "asyncOp", True)
        if torch.autograd._profiler_enabled():
            # An event of the profiler begins and ends on different threads, as with gloo.
            finish, asynchronous = self._recorded(finish, event, inputs), True
        return seconds, asynchronous, tensors, finish

    def _run_message(self, tensors, finish, event, tensor):
        if torch.autograd._profiler_enabled():
            finish = self._recorded(finish, event, (tensor,))
        return self._timeout, True, tensors, finish

    def _recorded(self, finish, event, inputs):
        """Begins an event of the profiler, which ends when the returned function has finished."""
        handle = torch.autograd._record_function_with_args_enter(f"{self._name}:{event}", *inputs)

        def finish_recorded():
            if finish is not None:
                finish()
            torch.autograd._record_function_with_args_exit(handle)

        return finish_recorded

    def _work(self, operations, tensors):
        """Returns the handle of operations, of which those that have ended are None."""
        self._sequence += 1
        return self._handle_of([operation for operation in operations if operation is not None], tensors)

    def _started(self, operation, tensors):
        """Returns the handle of an operation, which is None if it has ended."""
        self._sequence += 1
        return ENDED if operation is None else self._handle_of([operation], tensors)

    def _handle_of(self, operations, tensors):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if self._coalesced is not None:
            self._coalesced[0].extend(operations)
            self._coalesced[1].extend(tensors or ())
            # The results belong to the handle of all.
            tensors = None
        return work(operations, tensors, self._sequence, self._is_timed)

    # A method of the group in Rust reads the usual calls itself, and returns NotImplemented for others.

    # Some of these methods have a shorter form, for one tensor of each rank: instead of options, they
    # have a root, an operator and a timeout.

    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        if timeout is not None or op is not None:
            opts = t.options(opts, c10d.AllreduceOptions, timeout, op)
        operation = self._group.quick_all_reduce(tensors, opts, self._timeout)
        return self._allreduce(tensors, opts) if operation is NotImplemented else self._started(operation, tensors)

    @or_on_device
    def _allreduce(self, tensors, opts):
        opts = t.options(opts, c10d.AllreduceOptions)
        tensor = t.single(tensors)
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        memory = t.plain(tensor)
        code, width, op = t.to_reduce(tensor.dtype, opts.reduceOp)
        run = self._run(opts, (tensor, memory), t.copy_back(tensor, memory), "all_reduce", tensor)
        operation = self._group.all_reduce(t.span(memory, width), code, op, run)
        return self._work([operation], tensors)

    @or_on_device
    def allreduce_coalesced(self, tensors, opts=None):
        opts = t.options(opts, c10d.AllreduceCoalescedOptions)
        flat, finish = t.gathered(tensors)
        code, width, op = t.to_reduce(flat.dtype, opts.reduceOp)
        run = self._run(opts, (tensors, flat), finish, "all_reduce", *tensors)
        operation = self._group.all_reduce(t.span(flat, width), code, op, run)
        return self._work([operation], tensors)

    @or_on_device
    def allreduce_sparse(self, tensors, opts=None):
        """Sums sparse tensors. It has ended when it returns."""
        opts = t.options(opts, c10d.AllreduceOptions)
        tensor = t.single(tensors)
        t.check_host(tensor)
        if t.operator_name(opts.reduceOp) != "SUM":
            raise ValueError("the only operator of sparse tensors is SUM")
        own = tensor.coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        counts = torch.empty(self._size, dtype=torch.int64)
        self._allgather_base(counts, torch.tensor([indices.shape[0]]), _blocking()).wait()
        counts = counts.tolist()
        all_indices = self._gathered_rows(indices, counts)
        all_values = self._gathered_rows(values, counts)
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
        tensor.copy_(total)
        return self._work([], tensors)

    def _gathered_rows(self, rows, counts):
        """Returns the rows of all ranks, which have different numbers of them."""
        gathered = rows.new_empty((sum(counts), *rows.shape[1:]))
        code, width = t.to_move(rows.dtype)
        width *= t.row_elements(rows)
        run = self._timeout, False, (rows, gathered), None
        send, recv = (rows.data_ptr(), rows.shape[0] * width), (gathered.data_ptr(), sum(counts) * width)
        lengths = [count * width for count in counts]
        operation = self._group.all_gather(send, recv, code, lengths, run)
        self._work([operation], None).wait()
        return gathered

    def broadcast(self, tensors, opts=None, timeout=None, root=None):
        if timeout is not None or root is not None:
            opts = t.options(opts, c10d.BroadcastOptions, timeout, root)
        operation = self._group.quick_broadcast(tensors, opts, self._timeout)
        return self._broadcast(tensors, opts) if operation is NotImplemented else self._started(operation, tensors)

    @or_on_device
    def _broadcast(self, tensors, opts):
        opts = t.options(opts, c10d.BroadcastOptions)
        tensor = t.single(tensors)
        memory = t.plain(tensor)
        code, width = t.to_move(tensor.dtype)
        run = self._run(opts, (tensor, memory), t.copy_back(tensor, memory), "broadcast", tensor)
        operation = self._group.broadcast(t.span(memory, width), code, opts.rootRank, run)
        return self._work([operation], tensors)

    @or_on_device
    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None):
        opts = t.options(opts, c10d.ReduceOptions, op, timeout, root)
        tensor = t.single(tensors)
        memory = t.plain(tensor)
        code, width, op = t.to_reduce(tensor.dtype, opts.reduceOp)
        finish = t.copy_back(tensor, memory) if self._rank == opts.rootRank else None
        run = self._run(opts, (tensor, memory), finish, "reduce", tensor)
        operation = self._group.reduce(t.span(memory, width), code, op, opts.rootRank, run)
        return self._work([operation], tensors)

    def all_gather_single(self, output, input, opts=None):
        operation = self._group.quick_all_gather(output, input, opts, self._timeout)
        if operation is NotImplemented:
            return self._all_gather_single(output, input, opts)
        return self._started(operation, [output])

    _allgather_base = all_gather_single

    @or_on_device
    def _all_gather_single(self, output, input, opts):
        opts = t.options(opts, c10d.AllgatherOptions)
        return self._work([self._gather_to(output, input, None, opts)], [output])

    def _gather_to(self, output, input, counts, opts, finish=None, event="all_gather_into_tensor"):
        t.check_same_type(output, input)
        send, recv = t.plain(input), t.plain(output)
        if finish is None:
            finish = t.copy_back(output, recv)
        code, width = t.to_move(input.dtype)
        counts = counts and [count * width for count in counts]
        run = self._run(opts, (output, input, send, recv), finish, event, input)
        return self._group.all_gather(t.span(send, width), t.span(recv, width), code, counts, run)

    @or_on_device
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        opts = t.options(opts, c10d.AllgatherOptions)
        operations = [self._gather_to(*pair, None, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._work(operations, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @or_on_device
    def allgather(self, output_lists, inputs, opts=None, timeout=None):
        opts = t.options(opts, c10d.AllgatherOptions, timeout)
        if isinstance(inputs, torch.Tensor):
            output_lists, inputs = [output_lists], [inputs]
        outputs, input = t.only(output_lists), t.only(inputs)
        self._check_number(outputs)
        flat, finish = t.receiving(outputs)
        operation = self._gather_to(flat, input, t.counts(outputs), opts, finish, "all_gather")
        return self._work([operation], outputs)

    @or_on_device
    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """`output_lists` has a list of tensors for each rank."""
        opts = t.options(opts, c10d.AllgatherOptions)
        self._check_number(output_lists)
        send = t.concatenated(inputs)
        recv, finish = t.receiving([output for outputs in output_lists for output in outputs])
        t.check_same_type(recv, send)
        code, width = t.to_move(send.dtype)
        run = self._run(opts, (output_lists, inputs, send, recv), finish, "all_gather", *inputs)
        operation = self._group.all_gather(t.span(send, width), t.span(recv, width), code, None, run)
        return self._work([operation], output_lists)

    def reduce_scatter_single(self, output, input, opts=None):
        operation = self._group.quick_reduce_scatter(output, input, opts, self._timeout)
        if operation is NotImplemented:
            return self._reduce_scatter_single(output, input, opts)
        return self._started(operation, [output])

    _reduce_scatter_base = reduce_scatter_single

    @or_on_device
    def _reduce_scatter_single(self, output, input, opts):
        opts = t.options(opts, c10d.ReduceScatterOptions)
        return self._work([self._reduce_to(output, input, None, opts)], [output])

    def _reduce_to(self, output, input, counts, opts):
        t.check_same_type(output, input)
        send, recv = t.plain(input), t.plain(output)
        code, width, op = t.to_reduce(input.dtype, opts.reduceOp)
        counts = counts and [count * width for count in counts]
        finish = t.copy_back(output, recv)
        run = self._run(opts, (output, input, send, recv), finish, "reduce_scatter_tensor", input)
        return self._group.reduce_scatter(t.span(send, width), t.span(recv, width), code, op, counts, run)

    @or_on_device
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        opts = t.options(opts, c10d.ReduceScatterOptions)
        operations = [self._reduce_to(*pair, None, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._work(operations, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @or_on_device
    def reduce_scatter(self, outputs, input_lists, opts=None, timeout=None, op=None):
        opts = t.options(opts, c10d.ReduceScatterOptions, timeout, op)
        if isinstance(outputs, torch.Tensor):
            outputs, input_lists = [outputs], [input_lists]
        output, inputs = t.only(outputs), t.only(input_lists)
        self._check_number(inputs)
        operation = self._reduce_to(output, t.concatenated(inputs), t.counts(inputs), opts)
        return self._work([operation], outputs)

    @or_on_device
    def alltoall_base(self, output, input, output_splits, input_splits, opts=None, timeout=None):
        opts = t.options(opts, c10d.AllToAllOptions, timeout)
        t.check_same_type(output, input)
        send, recv = t.plain(input), t.plain(output)
        if not (input.is_contiguous() and output.is_contiguous()):
            raise ValueError("Tensors must be contiguous")
        code, width = t.to_move(input.dtype)
        send_counts = self._split(input, input_splits, width)
        recv_counts = self._split(output, output_splits, width)
        if (send_counts is None) != (recv_counts is None):
            send_counts = send_counts or [input.numel() * width // self._size] * self._size
            recv_counts = recv_counts or [output.numel() * width // self._size] * self._size
        finish = t.copy_back(output, recv)
        run = self._run(opts, (output, input, send, recv), finish, "all_to_all", input)
        spans = t.span(send, width), t.span(recv, width)
        return self._work([self._group.all_to_all(*spans, code, send_counts, recv_counts, run)], [output])

    all_to_all_single = alltoall_base

    def _split(self, tensor, splits, width):
        """Returns the number of elements for each rank, or None if all are equal."""
        if not splits:
            if tensor.dim() > 0 and tensor.shape[0] % self._size:
                # PyTorch's wording, which programs look for.
                raise RuntimeError(
                    f"the first dimension, {tensor.shape[0]}, does not divide equally across group size {self._size}"
                )
            return None
        if len(splits) != self._size or min(splits) < 0 or sum(splits) != tensor.shape[0]:
            raise RuntimeError(f"splits {list(splits)} do not divide {tensor.shape[0]} rows among {self._size} ranks")
        return [rows * t.row_elements(tensor) * width for rows in splits]

    @or_on_device
    def alltoall(self, outputs, inputs, opts=None):
        opts = t.options(opts, c10d.AllToAllOptions)
        self._check_number(outputs)
        self._check_number(inputs)
        send, (recv, finish) = t.concatenated(inputs), t.receiving(outputs)
        t.check_same_type(send, recv)
        code, width = t.to_move(send.dtype)
        counts = [[tensor.numel() * width for tensor in tensors] for tensors in (inputs, outputs)]
        run = self._run(opts, (outputs, inputs, send, recv), finish, "all_to_all", *inputs)
        operation = self._group.all_to_all(t.span(send, width), t.span(recv, width), code, *counts, run)
        return self._work([operation], outputs)

    @or_on_device
    def gather(self, output_lists, inputs, opts=None, timeout=None, root=None):
        opts = t.options(opts, c10d.GatherOptions, timeout, root)
        if isinstance(inputs, torch.Tensor):
            output_lists, inputs = [output_lists], [inputs]
        input, outputs = t.only(inputs), []
        send, recv, flat, finish = t.plain(input), None, None, None
        code, width = t.to_move(input.dtype)
        if self._rank == opts.rootRank:
            outputs = t.only(output_lists)
            self._check_number(outputs)
            flat, finish = t.receiving(outputs)
            t.check_same_type(flat, input)
            recv = t.span(flat, width)
        run = self._run(opts, (output_lists, input, send, flat), finish, "gather", input)
        operation = self._group.gather(t.span(send, width), recv, code, opts.rootRank, run)
        return self._work([operation], outputs)

    @or_on_device
    def gather_single(self, output, input, opts=None):
        """`output` has any shape. It is used on the root only."""
        opts = t.options(opts, c10d.GatherOptions)
        send, recv, span, finish = t.plain(input), None, None, None
        code, width = t.to_move(input.dtype)
        if self._rank == opts.rootRank:
            if output.numel() != input.numel() * self._size:
                raise ValueError(f"{output.numel()} elements for {self._size} tensors of {input.numel()}")
            t.check_same_type(output, input)
            recv = t.plain(output)
            span, finish = t.span(recv, width), t.copy_back(output, recv)
        run = self._run(opts, (output, input, send, recv), finish, "gather", input)
        operation = self._group.gather(t.span(send, width), span, code, opts.rootRank, run)
        return self._work([operation], [output])

    @or_on_device
    def scatter(self, outputs, input_lists, opts=None, timeout=None, root=None):
        opts = t.options(opts, c10d.ScatterOptions, timeout, root)
        if isinstance(outputs, torch.Tensor):
            outputs, input_lists = [outputs], [input_lists]
        output = t.only(outputs)
        recv, send, flat = t.plain(output), None, None
        code, width = t.to_move(output.dtype)
        if self._rank == opts.rootRank:
            inputs = t.only(input_lists)
            self._check_number(inputs)
            flat = t.concatenated(inputs)
            t.check_same_type(flat, output)
            send = t.span(flat, width)
        finish = t.copy_back(output, recv)
        run = self._run(opts, (outputs, input_lists, recv, flat), finish, "scatter", output)
        operation = self._group.scatter(send, t.span(recv, width), code, opts.rootRank, run)
        return self._work([operation], outputs)

    def barrier(self, opts=None, timeout=None):
        if timeout is not None:
            opts = t.options(opts, c10d.BarrierOptions, timeout)
        operation = self._group.quick_barrier(opts, self._timeout)
        return self._barrier(opts) if operation is NotImplemented else self._started(operation, [])

    def _barrier(self, opts):
        opts = t.options(opts, c10d.BarrierOptions)
        device = opts.device or (torch.device("cuda", opts.device_ids[0]) if opts.device_ids else devices.CPU)
        if device.type != "cpu":
            return self._get_backend(device).barrier(opts)
        return self._work([self._group.barrier(self._run(opts, None, None, "barrier"))], [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Waits for all ranks, and names all that did not arrive, whatever `wait_all_ranks` is."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        try:
            operation = self._group.monitored_barrier((seconds, False, None, None))
            if operation is not None:
                operation.wait(None)
        except CommError as error:
            if error.kind != "timeout":
                raise
            # PyTorch's wording, which programs look for.
            who = ("Ranks " if len(error.ranks) > 1 else "Rank ") + ", ".join(map(str, error.ranks))
            message = (
                f"Rank {self._rank} timed out in monitoredBarrier after {seconds * 1000:.0f} ms: "
                f"{who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms: {error}"
            )
            raise CommError(message, error.kind, error.ranks) from None

    # Messages

    @or_on_device
    def send(self, tensors, dst, tag=0):
        tensor = t.single(tensors)
        memory = t.plain(tensor)
        code, width = t.to_move(tensor.dtype)
        run = self._run_message((tensor, memory), None, "send", tensor)
        return self._handle_of([self._group.send(t.span(memory, width), code, dst, tag, run)], tensors)

    @or_on_device
    def recv(self, tensors, src, tag=0):
        tensor = t.single(tensors)
        memory = t.plain(tensor)
        code, width = t.to_move(tensor.dtype)
        event = "recv" if src is not None else "recvAnySource"
        run = self._run_message((tensor, memory), t.copy_back(tensor, memory), event, tensor)
        return self._handle_of([self._group.recv(t.span(memory, width), code, src, tag, run)], tensors)

    @or_on_device
    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, None, tag)

    def _check_number(self, tensors):
        if len(tensors) != self._size:
            raise ValueError(f"there are {len(tensors)} tensors for {self._size} ranks")


def _blocking():
    opts = c10d.AllgatherOptions()
    if hasattr(opts, "asyncOp"):
        opts.asyncOp = False
    return opts
