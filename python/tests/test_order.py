"""Collectives run one at a time in the order of their calls, whichever thread waits for them."""

import datetime
import threading
import unittest

import torch
import torch.distributed as dist

import ranks
from comm_torch import CommError


def store():
    return dist.distributed_c10d._get_default_store()


def recorded_products(count):
    """Starts calls of which each uses the result of the one before. Returns their handles and, for
    each, the tensor with its result and what that should be."""
    size = dist.get_world_size()
    number, works, results = torch.ones(1, dtype=torch.int64), [], []
    for index in range(count):
        result = torch.zeros(size, dtype=torch.int64)
        works.append(dist.all_reduce(number, async_op=True))
        works.append(dist.all_gather_into_tensor(result, number, async_op=True))
        results.append((result, torch.full((size,), size ** (index + 1))))
    return works, results


def check(works, results):
    assert all(work.is_success() for work in works)
    for got, expected in results:
        assert got.equal(expected), (got, expected)


def waited_for_from_the_end():
    for _ in range(20):
        works, results = recorded_products(5)
        works[-1].wait()
        check(works, results)


def waited_for_on_several_threads():
    for _ in range(20):
        works, results = recorded_products(5)
        threads = [threading.Thread(target=work.wait) for work in reversed(works)]
        for thread in threads:
            thread.start()
        # Queued behind the others.
        last = torch.ones(1)
        dist.all_reduce(last)
        assert last.item() == dist.get_world_size()
        check(works, results)
        for thread in threads:
            thread.join()


def callbacks_make_calls():
    size = dist.get_world_size()

    def in_callback(_):
        waited, blocking = torch.ones(1), torch.ones(1)
        work = dist.all_reduce(waited, async_op=True)
        dist.all_reduce(blocking)
        work.wait()
        return waited + blocking

    for _ in range(20):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future().then(in_callback)
        # Either this thread or that of the group runs the callback.
        work.wait()
        assert future.wait().item() == 2 * size


def start(values):
    return dist.all_reduce(values, async_op=True).get_future()


def callbacks_wait_for_futures():
    size = dist.get_world_size()

    def in_callback(depth):
        # Waits within PyTorch, which this package does not see.
        later = start(torch.ones(1))
        return later.wait()[0] if depth == 0 else later.then(lambda _: in_callback(depth - 1)).wait()

    for depth in (0, 1, 5):
        first = start(torch.ones(1)).then(lambda _: in_callback(depth))
        # Queued before the callback can run, which waits for it.
        second = torch.ones(1)
        queued = start(second)
        third = start(torch.ones(1)).then(lambda _: queued.wait())
        assert first.wait().item() == size
        assert third.wait()[0].item() == second.item() == size


def a_wait_ends_at_its_timeout():
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        try:
            work.wait(datetime.timedelta(milliseconds=200))
        except CommError as error:
            assert error.kind == "timeout", error
        else:
            raise AssertionError("rank 1 has not called")
        store().set("waited", "")
        assert work.wait() and work.is_success()
    else:
        store().wait(["waited"])
        dist.all_reduce(torch.ones(1))


def other_threads_run_meanwhile():
    calls = {
        "blocking": lambda: dist.all_reduce(torch.ones(1)),
        "background": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    }
    for name, call in calls.items():
        if dist.get_rank() == 0:
            waiting = threading.Event()
            # Python changes threads every 5 ms, so this one runs once the other has called.
            thread = threading.Thread(target=lambda: waiting.wait() and store().set(name, ""))
            thread.start()
            waiting.set()
            call()
            thread.join()
        else:
            store().wait([name])
            call()


def calls_are_numbered():
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(8)[::2], async_op=True).wait()
    dist.broadcast(torch.ones(4), 0)
    dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], torch.ones(4))
    assert group._get_sequence_number_for_group() == before + 5


def the_profiler_sees_background_events():
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(4), async_op=True).wait()
    events = [event for event in profile.function_events if event.name == "comm:all_reduce"]
    # They end on another thread.
    assert len(events) == 1 and events[0].is_async, events


def profiler_sees_ends_on_other_threads():
    with torch.autograd.profiler.profile() as profile:
        handle = torch.autograd._record_function_with_args_enter("event")
        thread = threading.Thread(target=torch.autograd._record_function_with_args_exit, args=(handle,))
        thread.start()
        thread.join()
    return any(event.name == "event" for event in profile.function_events)


class Order(unittest.TestCase):
    def test_calls_run_in_order_on_any_thread(self):
        ranks.run(waited_for_from_the_end, 3)
        ranks.run(waited_for_on_several_threads, 2)

    def test_callbacks_make_calls(self):
        ranks.run(callbacks_make_calls, 2)

    def test_callbacks_wait_for_futures(self):
        ranks.run(callbacks_wait_for_futures, 2)

    def test_a_wait_ends_at_its_timeout(self):
        ranks.run(a_wait_ends_at_its_timeout, 2)

    def test_other_threads_run_while_a_call_waits(self):
        ranks.run(other_threads_run_meanwhile, 2)

    def test_the_profiler_sees_background_events(self):
        if not profiler_sees_ends_on_other_threads():
            self.skipTest("the profiler of this PyTorch does not")
        ranks.run(the_profiler_sees_background_events, 2)

    def test_calls_are_numbered(self):
        ranks.run(calls_are_numbered, 2)


if __name__ == "__main__":
    unittest.main()
