"""Mistakes, deaths and deadlines: every rank gets an error that names the ranks at fault."""

import datetime
import os
import signal
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from comm_torch import CommError


def error_of(call):
    try:
        call()
    except CommError as error:
        return error
    raise AssertionError("the call did not fail")


def set_timeout(seconds):
    """Sets the timeout of calls, once all ranks are there."""
    dist.barrier()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=seconds))


def different_lengths():
    rank = dist.get_rank()
    error = error_of(lambda: dist.all_reduce(torch.ones(10 + rank)))
    assert error.kind == "desync" and sorted(error.ranks) == [0, 1], (error, error.kind, error.ranks)
    assert "all_reduce" in str(error), error
    later = error_of(dist.barrier)
    assert "earlier error" in str(later), later


def different_calls():
    own = torch.ones(4)
    calls = [lambda: dist.all_reduce(own), lambda: dist.broadcast(own, 0)]
    error = error_of(calls[dist.get_rank()])
    assert error.kind == "desync" and "all_reduce" in str(error) and "broadcast" in str(error), error


def a_rank_dies():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
    errors = [error_of(work.wait) for work in works]
    assert all(error.ranks == [1] for error in errors), errors
    assert errors[0].kind == "peer_lost", errors[0].kind
    assert works[0].is_completed() and not works[0].is_success() and works[0].exception() is not None
    try:
        works[0].get_future().wait()
    except RuntimeError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("the future has no error")
    print(f"named after {time.monotonic() - began:.3f} s")


def a_rank_is_late():
    set_timeout(1.5)
    if dist.get_rank() == 1:
        time.sleep(3)
        error = error_of(lambda: dist.all_reduce(torch.ones(1)))
        assert error.kind in ("timeout", "aborted"), (error, error.kind)
        return
    error = error_of(lambda: dist.all_reduce(torch.ones(1)))
    assert (error.kind, error.ranks) == ("timeout", [1]), (error, error.kind)


def a_call_has_its_own_deadline():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        # Later than the deadline of the call, and long before that of the group.
        store.wait(["failed"])
        return
    opts = dist.AllreduceOptions()
    opts.timeout = datetime.timedelta(seconds=1)
    error = error_of(dist.group.WORLD.allreduce([torch.ones(1)], opts).wait)
    assert error.ranks == [1] and "timed out after 1s" in str(error), error
    store.set("failed", "")


def nobody_sends():
    if dist.get_rank() == 0:
        set_timeout(1)
        work = dist.irecv(torch.ones(1), 1)
        error = error_of(work.wait)
        assert error.kind == "timeout" and "rank 1" in str(error), error
    else:
        set_timeout(60)
    # Only the message has failed.
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=60))
    dist.barrier()


def monitored():
    if dist.get_rank() != 1:
        error = error_of(lambda: ranks.monitored_barrier(timeout=datetime.timedelta(seconds=1)))
        assert error.ranks == [1] and "Rank 1 failed to pass monitoredBarrier" in str(error), error
    else:
        time.sleep(2)


def runtime_error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the call did not fail")


def wrong_arguments():
    for call in (
        lambda: dist.all_gather([torch.ones(2)], torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(3)),
    ):
        try:
            call()
        except (ValueError, RuntimeError, TypeError):
            continue
        raise AssertionError("the call did not fail")
    for splits in ([-1, 5], [2, 2]), ([2, 2], [-1, 5]), ([4], [2, 2]), ([1, 1], [2, 2]):
        assert "split" in runtime_error_of(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), *splits))
    for sizes in (3, 3), (4, 3), (3, 4):
        message = runtime_error_of(lambda: dist.all_to_all_single(*map(torch.ones, sizes)))
        # PyTorch's words.
        assert "does not divide equally across group size" in message, message
    # Nothing was sent, so the group can be used.
    dist.barrier()


def leaves_with_operations_pending():
    rank = dist.get_rank()
    group = dist.new_group()
    dist.barrier(group=group)
    # Nobody sends this message.
    work = dist.irecv(torch.ones(1), 1 - rank, group=group)
    began = time.monotonic()
    dist.destroy_process_group(group)
    del group
    error = error_of(work.wait)
    assert error.kind in ("cancelled", "peer_lost"), (error, error.kind)
    assert time.monotonic() - began < 20
    if rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
        raise SystemExit(0)
    time.sleep(1)
    error = error_of(lambda: dist.all_reduce(torch.ones(1)))
    assert error.ranks == [0], error


def a_forked_child_gets_an_error():
    child = os.fork()
    if child == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        os._exit(0 if "forked" in str(error_of(work.wait)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()


class Failures(unittest.TestCase):
    def test_different_calls_are_named_on_both_ranks(self):
        ranks.run(different_lengths, 2)
        ranks.run(different_calls, 2)

    def test_a_dead_rank_is_named(self):
        processes = ranks.start(a_rank_dies, 3)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, -signal.SIGKILL, 0], outputs)

    def test_a_late_rank_is_named_at_the_deadline(self):
        ranks.run(a_rank_is_late, 2)
        ranks.run(a_call_has_its_own_deadline, 2)
        ranks.run(monitored, 3)

    def test_a_message_that_nobody_sends_fails_alone(self):
        ranks.run(nobody_sends, 2)

    def test_a_group_that_is_left_ends_what_is_pending(self):
        ranks.run(leaves_with_operations_pending, 2)

    def test_a_forked_child_cannot_use_the_group(self):
        ranks.run(a_forked_child_gets_an_error, 2)

    def test_wrong_arguments_change_nothing(self):
        ranks.run(wrong_arguments, 2)


if __name__ == "__main__":
    unittest.main()
