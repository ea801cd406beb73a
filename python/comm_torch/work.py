"""Operations in progress, as torch.distributed sees them."""

import torch
import torch.distributed as dist

from .errors import CommError


def _seconds(timeout):
    """Returns a timeout in seconds, or None if there is none, which PyTorch writes as zero."""
    return timeout.total_seconds() if timeout and timeout.total_seconds() > 0 else None


class CommWork(dist.Work):
    """Operations, and the tensors with their results. `work` creates it."""

    __slots__ = ("_operations", "_tensors", "_future", "__dict__")

    def wait(self, timeout=None):
        for operation in self._operations:
            if not operation.wait(_seconds(timeout)):
                raise CommError(f"the operation has not ended after {timeout}", "timeout")
        return True

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

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            self._await(0, None)
        return self._future

    def _await(self, index, error):
        """Completes the future once all operations from `index` on have ended."""
        if error is not None:
            self._future.set_exception(error)
        elif index == len(self._operations):
            self._future.set_result(self._tensors)
        else:
            self._operations[index].on_done(lambda error: self._await(index + 1, error))


def work(operations, tensors):
    """Returns the handle of operations. A constructor in Python would take twice as long."""
    created = CommWork()
    created._operations, created._tensors, created._future = operations, tensors, None
    return created


# A handle without results. PyTorch asks for none where it waits for a call.
ENDED = work([], [])
