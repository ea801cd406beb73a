"""How long calls took, and functions that are called when a group has failed."""

import datetime
import threading
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from test_failures import error_of


def duration_error(work):
    try:
        work._get_duration()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("there is a duration")


def handles_have_durations():
    store, group, rank = dist.distributed_c10d._get_default_store(), dist.group.WORLD, dist.get_rank()
    untimed = dist.all_reduce(torch.ones(4), async_op=True)
    untimed.wait()
    group._enable_collectives_timing()
    assert "_enable_collectives_timing" in duration_error(untimed)
    began = time.monotonic()
    # A message takes from its call on.
    message = dist.irecv(torch.ones(1), 1) if rank == 0 else None
    # One collective at a time: the second one does not begin while the first waits for rank 1.
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)] if rank == 0 else []
    if rank == 0:
        assert "has not ended" in duration_error(works[0])
        time.sleep(0.05)
        store.set("called", "")
    else:
        store.wait(["called"])
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
        dist.send(torch.ones(1), 0)
    for work in works:
        work.wait()
    if message is not None:
        message.wait()
        assert 50 <= message._get_duration() <= (time.monotonic() - began) * 1000
    durations = [work._get_duration() for work in works]
    assert all(duration > 0 for duration in durations), durations
    assert sum(durations) <= (time.monotonic() - began) * 1000, durations
    # Of all calls that have one handle.
    group._start_coalescing(torch.device("cpu"))
    parts = [group.allreduce([torch.ones(4)], dist.AllreduceOptions()) for _ in range(2)]
    work = group._end_coalescing(torch.device("cpu"))
    work.wait()
    assert work._get_duration() >= sum(part._get_duration() for part in parts)


def hooks_are_called_before_the_error_is_known():
    store, group, called = dist.distributed_c10d._get_default_store(), dist.group.WORLD, []

    def fails():
        called.append("fails")
        raise ValueError("a hook has failed")

    assert group.supports_abort_hooks
    for number, hook in enumerate([fails, lambda: called.append("works"), lambda: called.append("removed")]):
        group.register_abort_hook(number, hook)
    group.unregister_abort_hook(2)
    dist.barrier()
    if dist.get_rank() == 1:
        store.wait(["failed"])
        return
    # These calls fail alone.
    no_root = dist.BroadcastOptions()
    no_root.rootRank = 2
    error = error_of(group.broadcast([torch.ones(1)], no_root).wait)
    assert error.kind == "invalid", (error, error.kind)
    group.set_timeout(datetime.timedelta(milliseconds=300))
    error_of(dist.irecv(torch.ones(1), 1).wait)
    assert not called, called
    work, known, is_known = dist.all_reduce(torch.ones(1), async_op=True), [], threading.Event()
    work.get_future().add_done_callback(lambda _: (known.append(list(called)), is_known.set()))
    error = error_of(work.wait)
    # Callbacks may run on another thread, which may be slow.
    assert is_known.wait(60)
    assert (error.kind, error.ranks) == ("timeout", [1]), error
    both = ["fails", "works"]
    assert called == both, called
    # Another call, on this thread, finds the same failure.
    error_of(lambda: dist.all_reduce(torch.ones(1)))
    assert called == both * 2 and known == [both], (called, known)
    store.set("failed", "")


def an_abort_calls_the_hooks_of_each_rank():
    group, called = dist.new_group(), []
    group.register_abort_hook(7, lambda: called.append(7))
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        group.abort()
        error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
    else:
        error = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert (error.kind, error.ranks) == ("aborted", [0]), error
    assert called == [7], called


def hooks_outlive_a_change_of_members():
    group, called = dist.group.WORLD, []
    group.register_abort_hook(0, lambda: called.append(0))
    group.abort()
    for uuid in (1, 2):
        dist._reconfigure(uuid, [dist._get_reconfigure_handle()])
    assert not called, "there was nothing to abort"
    group.abort()
    assert called == [0], called


def hooks_that_nobody_calls_are_refused():
    group = dist.group.WORLD
    assert not group.supports_completion_hooks and not group.supports_window
    for register in (group.register_pre_hook, group.register_post_hook):
        try:
            register(0, print)
        except RuntimeError as error:
            assert "C++" in str(error), error
            continue
        raise AssertionError("a hook was registered")


class Hooks(unittest.TestCase):
    def test_handles_have_durations(self):
        ranks.run(handles_have_durations, 2)

    def test_hooks_are_called_before_the_error_is_known(self):
        outputs = ranks.run(hooks_are_called_before_the_error_is_known, 2)
        self.assertEqual([output.count("ValueError: a hook has failed") for output in outputs], [2, 0])

    def test_an_abort_calls_the_hooks_of_each_rank(self):
        ranks.run(an_abort_calls_the_hooks_of_each_rank, 2)

    @unittest.skipUnless(hasattr(dist, "_reconfigure"), "this PyTorch has groups whose members stay")
    def test_hooks_outlive_a_change_of_members(self):
        ranks.run(hooks_outlive_a_change_of_members, 1, environment={ranks.RECONFIGURE: "1"})

    def test_hooks_that_nobody_calls_are_refused(self):
        ranks.run(hooks_that_nobody_calls_are_refused, 1)


if __name__ == "__main__":
    unittest.main()
