"""What programs ask of handles and of the group, besides results."""

import datetime
import unittest

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import comm_torch
import ranks

CPU = torch.device("cpu")


def calls_on_a_device_get_one_handle():
    rank, size = dist.get_rank(), dist.get_world_size()
    for asynchronous in (False, True):
        numbers = [torch.full((count,), float(rank + count)) for count in (1, 2, 3)]
        with dist._coalescing_manager(device=CPU, async_ops=asynchronous) as manager:
            for number in numbers:
                dist.all_reduce(number)
        assert len(manager.works) == (1 if asynchronous else 0)
        manager.wait()
        for count, number in zip((1, 2, 3), numbers, strict=True):
            total = float(sum(peer + count for peer in range(size)))
            assert number.equal(torch.full((count,), total)), number
    # Calls of different kinds, and messages.
    group, received = dist.group.WORLD, torch.empty(4)
    group._start_coalescing(CPU)
    total = torch.ones(1)
    group.allreduce([total], dist.AllreduceOptions())
    group.send([torch.full((4,), float(rank))], (rank + 1) % size, 0)
    group.recv([received], (rank - 1) % size, 0)
    work = group._end_coalescing(CPU)
    assert work.wait() and work.is_success()
    assert total.item() == size and received.equal(torch.full((4,), float((rank - 1) % size)))
    # The next call has a handle of its own.
    assert len(dist.all_reduce(total, async_op=True).result()) == 1


def handles_are_numbered():
    subgroup = dist.new_group(list(range(dist.get_world_size())))
    for group in (dist.group.WORLD, subgroup):
        before = group._get_sequence_number_for_group()
        for number in range(before + 1, before + 4):
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            assert work._get_sequence_number() == number
            work.wait()


def results_of_handles():
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert c10d.WorkResult(work.get_future_result().wait()) == c10d.WorkResult.SUCCESS and work.is_completed()
    assert dist.group.WORLD.get_error() == c10d.ErrorType.SUCCESS
    if dist.get_rank() == 0:
        dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=300))
        late = dist.all_reduce(torch.ones(1), async_op=True)
        assert c10d.WorkResult(late.get_future_result().wait()) == c10d.WorkResult.TIMEOUT
        assert dist.group.WORLD.get_error() == c10d.ErrorType.TIMEOUT
        dist.distributed_c10d._get_default_store().set("late", "")
    else:
        dist.distributed_c10d._get_default_store().wait(["late"])


def results_are_lists_of_tensors():
    """The same ones with every backend."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    own, numbers = torch.tensor([rank]), list(map(torch.tensor, [[number] for number in range(size)]))
    outputs = [torch.empty_like(own) for _ in range(size)]

    def results(work):
        work.wait()
        return work.get_future().value(), work.result()

    assert results(group.allgather([outputs], [own])) == (outputs, outputs) and outputs == numbers
    output_lists, outputs = ([outputs], outputs) if rank == 1 else ([], [])
    options = dist.GatherOptions()
    options.rootRank = 1
    future, result = results(group.gather(output_lists, [own], options))
    assert future == outputs and (rank != 1 or result == outputs == numbers)
    # Gloo takes several tensors in some of its calls, of which comm takes one.
    if group._get_backend_name() == "comm":
        try:
            group.allreduce([own, own], dist.AllreduceOptions())
        except ValueError as error:
            assert str(error) == "a call has one tensor per rank, not 2"
            return
        raise AssertionError("two tensors have no sum")


def calls_have_a_shorter_form():
    """For one tensor of each rank, with a root, an operator and a timeout instead of options."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    limit, largest = datetime.timedelta(seconds=30), dist.ReduceOp.MAX
    # Their sum is not the largest.
    numbers = [torch.tensor([number + 1]) for number in range(size)]

    def check(work, *expected):
        work.wait()
        assert work.get_future().value() == list(expected)

    # On tensors that are read in place, and on copies.
    for own in (torch.tensor([rank + 1]), torch.tensor([rank + 1, 0])[::2]):
        check(group.allreduce(own.clone(), largest, limit), numbers[-1])
        check(group.allreduce([own.clone()], op=largest, timeout=limit), numbers[-1])
        check(group.broadcast(own.clone(), 1, limit), numbers[1])
        check(group.broadcast(own.clone(), root=1, timeout=limit), numbers[1])
        reductions = [
            group.reduce(own.clone(), 1, largest, limit),
            group.reduce(own.clone(), root=1, op=largest, timeout=limit),
        ]
        for reduced in reductions:
            # The others get no result.
            reduced.wait() if rank != 1 else check(reduced, numbers[-1])
        received = [torch.empty_like(own) for _ in numbers]
        check(group.allgather(received, own, timeout=limit), *numbers)
        received = received if rank == 1 else []
        check(group.gather(received, own, 1, limit), *received)
        check(group.gather(received, own, root=1, timeout=limit), *received)
        given = [number + 7 for number in numbers] if rank == 1 else []
        check(group.scatter(own.clone(), given, 1, limit), own + 7)
        check(group.scatter(own.clone(), given, root=1, timeout=limit), own + 7)
        exchanged = torch.empty(size, dtype=own.dtype)
        group.alltoall_base(exchanged, own.repeat(size), [], [], limit).wait()
        assert exchanged.equal(torch.cat(numbers))
        group.barrier(timeout=limit).wait()
    # Nothing that a caller asks for is ignored.
    try:
        group.reduce([own.clone()], dist.ReduceOptions(), op=largest)
    except TypeError:
        pass
    else:
        raise AssertionError("options have an operator already")
    if group._get_backend_name() == "comm":
        check(group.reduce_scatter(own.clone(), list(map(torch.clone, numbers)), op=largest), own)
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            try:
                group.allreduce(own.clone(), timeout=datetime.timedelta(milliseconds=300)).wait()
            except RuntimeError as error:
                assert "timed out after 300ms" in str(error), error
                return store.set("late", "")
            raise AssertionError("the other rank makes no call")
        store.wait(["late"])


def it_takes_the_name_of_another_backend():
    if ranks.VERSION >= (2, 15):
        comm_torch.register("gloo")
        assert type(dist.new_group(backend="gloo")) is type(dist.group.WORLD)
        return
    try:
        comm_torch.register("gloo")
    except RuntimeError as error:
        assert "use PyTorch 2.15 or later" in str(error)
        return
    raise AssertionError("older versions create gloo without asking")


def an_abort_of_its_own_is_no_failure():
    dist.barrier()
    if dist.get_rank() == 0:
        dist.group.WORLD.abort()
        assert dist.group.WORLD.get_error() == c10d.ErrorType.SUCCESS
    else:
        try:
            dist.barrier()
        except RuntimeError:
            pass
        assert dist.group.WORLD.get_error() == c10d.ErrorType.COMM_ERROR


def handles_are_kept_until_they_are_waited_for():
    from torch.distributed import _functional_collectives as functional

    kept = c10d._get_work_registry_size
    with functional.allow_inflight_collective_as_graph_input_ctx():
        for wait in (lambda work, _: work.wait(), lambda _, tensor: functional.wait_tensor(tensor)):
            number = torch.ones(1)
            work = dist.all_reduce(number, async_op=True)
            assert kept() == 1
            wait(work, number)
            assert kept() == 0 and work.is_completed() and number.item() == dist.get_world_size()
        # By any of its tensors.
        outputs = [torch.empty(1) for _ in range(dist.get_world_size())]
        work = dist.all_gather(outputs, number, async_op=True)
        functional.wait_tensor(outputs[1])
        assert kept() == 0 and work.is_completed()
        with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
            dist.all_reduce(number)
        assert kept() == 1
        manager.wait()
        assert kept() == 0
    dist.all_reduce(number, async_op=True).wait()
    assert kept() == 0


def one_tensor_gathers_on_the_root():
    rank, size = dist.get_rank(), dist.get_world_size()
    for shape in ((size * 3,), (size, 3)):
        for asynchronous in (False, True):
            output = torch.empty(shape) if rank == 1 else None
            work = dist.gather_single(torch.full((3,), float(rank)), output, dst=1, async_op=asynchronous)
            assert (work is None) == (not asynchronous)
            if asynchronous:
                work.wait()
            if rank == 1:
                assert output.flatten().equal(torch.arange(float(size)).repeat_interleave(3))
    strided = torch.empty(3, size) if rank == 1 else None
    dist.gather_single(torch.full((3,), float(rank)), strided if strided is None else strided.t(), dst=1)
    if rank == 1:
        assert strided.t().flatten().equal(torch.arange(float(size)).repeat_interleave(3))
        try:
            dist.gather_single(torch.ones(3), torch.empty(3), dst=1)
        except ValueError:
            return
        raise AssertionError("there is no space for the tensors of all ranks")


def tensors_with_gaps_are_refused():
    size = dist.get_world_size()
    whole, strided = torch.ones(size, size), torch.ones(size, size).t()
    for output, input in ((whole, strided), (strided, whole)):
        try:
            dist.all_to_all_single(output, input)
        except ValueError as error:
            assert "Tensors must be contiguous" in str(error)
            continue
        raise AssertionError("PyTorch refuses tensors with gaps")


class Handles(unittest.TestCase):
    def test_it_takes_the_name_of_another_backend(self):
        ranks.run(it_takes_the_name_of_another_backend, 2)

    def test_calls_have_a_shorter_form(self):
        # The other backends of older versions have no timeout here.
        for backend in ("comm", "gloo")[: 2 if ranks.VERSION >= (2, 15) else 1]:
            ranks.run(calls_have_a_shorter_form, 2, backend=backend)

    def test_results_are_lists_of_tensors(self):
        for backend in ("comm", "gloo"):
            ranks.run(results_are_lists_of_tensors, 2, backend=backend)

    def test_calls_on_a_device_get_one_handle(self):
        ranks.run(calls_on_a_device_get_one_handle, 2)

    def test_handles_are_numbered(self):
        ranks.run(handles_are_numbered, 2)

    @unittest.skipUnless(hasattr(c10d, "WorkResult"), "this PyTorch has no results of handles")
    def test_results_of_handles(self):
        ranks.run(results_of_handles, 2)

    def test_an_abort_of_its_own_is_no_failure(self):
        ranks.run(an_abort_of_its_own_is_no_failure, 2)

    @unittest.skipUnless(hasattr(c10d, "_register_work"), "this PyTorch does not keep handles")
    def test_handles_are_kept_until_they_are_waited_for(self):
        ranks.run(handles_are_kept_until_they_are_waited_for, 2)

    @unittest.skipUnless(hasattr(dist, "gather_single"), "this PyTorch has no gather_single")
    def test_one_tensor_gathers_on_the_root(self):
        ranks.run(one_tensor_gathers_on_the_root, 3)

    def test_tensors_with_gaps_are_refused(self):
        ranks.run(tensors_with_gaps_are_refused, 2)


if __name__ == "__main__":
    unittest.main()
