"""Operations in progress, as torch.distributed sees them."""

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ._comm import Operation
from .errors import CommError

# Whether PyTorch keeps the handles of calls by their tensors, for programs that it compiles. Older versions do not.
_keeps_handles = getattr(c10d, "_allow_inflight_collective_as_graph_input", lambda: False)


def _seconds(timeout):
    """Returns a timeout in seconds, or None if there is none, which PyTorch writes as zero."""
    return timeout.total_seconds() if timeout and timeout.total_seconds() > 0 else None


class CommWork(dist.Work):
    """Operations, and the tensors with their results. `work` creates it."""

    __slots__ = ("_operations", "_tensors", "_future", "_sequence", "_is_timed", "_kept_by", "__dict__")

    def wait(self, timeout=None):
        for operation in self._operations:
            if not operation.wait(_seconds(timeout)):
                raise CommError(f"the operation has not ended after {timeout}", "timeout")
        if self._kept_by is not None:
            self._let_go()
        return True

    def _keep(self, tensors):
        """Lets PyTorch find this handle by its tensors until it has been waited for."""
        for tensor in tensors:
            c10d._register_work(tensor, self)
        self._kept_by = tensors

    def _let_go(self):
        # The calls wait for the handle again, so it must not find it kept.
        tensors, self._kept_by = self._kept_by, None
        for tensor in tensors:
            torch.ops._c10d_functional.wait_tensor(tensor)

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return all(operation.is_done() for operation in self._operations)

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        errors = (operation.exception() for operation in self._operations)
        return next((error for error in errors if error is not None), None)

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        return self._operations[0].source()

    _source_rank = source_rank

    def _get_sequence_number(self):
        """Returns the number of the last collective of the group when this one was called, counted from 1."""
        return self._sequence

    def _get_duration(self):
        """Returns the milliseconds from the first beginning of an operation to the last end of one."""
        duration = Operation.duration(self._operations) if self._is_timed else None
        if duration is None:
            raise RuntimeError(
                "the handle has no duration: its call came before _enable_collectives_timing(), has not ended, "
                "or had ended when it returned"
            )
        return duration

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            self._await(0, None)
        return self._future

    def get_future_result(self):
        """Returns a future of how the operations end: a number of PyTorch's `WorkResult`."""
        ended = torch.futures.Future()
        self.get_future().add_done_callback(lambda _: ended.set_result(int(self._outcome())))
        return ended

    def _outcome(self):
        error = self.exception()
        if error is None:
            return c10d.WorkResult.SUCCESS
        is_timeout = getattr(error, "kind", None) == "timeout"
        return c10d.WorkResult.TIMEOUT if is_timeout else c10d.WorkResult.COMM_ERROR

    def _await(self, index, error):
        """Completes the future once all operations from `index` on have ended."""
        if error is not None:
            self._future.set_exception(error)
        elif index == len(self._operations):
            self._future.set_result(self._tensors)
        else:
            self._operations[index].on_done(lambda error: self._await(index + 1, error))


def _flat(results):
    """Returns the tensors of a list of tensors, or of lists of them."""
    for result in results or ():
        if isinstance(result, torch.Tensor):
            yield result
        else:
            yield from result


def work(operations, tensors, sequence=0, is_timed=False):
    """Returns the handle of operations. A constructor in Python would take twice as long."""
    created = CommWork()
    created._operations, created._tensors = operations, tensors
    created._sequence, created._is_timed = sequence, is_timed
    created._future = created._kept_by = None
    if operations and _keeps_handles():
        created._keep(list(_flat(tensors)))
    return created


# A handle without results. PyTorch asks for none where it waits for a call.
ENDED = work([], [])
