"""Groups whose members change: ranks die, others go on, and new processes join."""

import datetime
import os
import signal
import unittest

import torch
import torch.distributed as dist

import ranks
from test_failures import error_of

ENVIRONMENT = {ranks.RECONFIGURE: "1"}


def handles(step, own, members):
    """Returns the handles of the members of a step, in this order. Each calls this with its name."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{step}/{own}", dist._get_reconfigure_handle())
    names = [f"{step}/{member}" for member in members]
    store.wait(names, datetime.timedelta(seconds=60))
    return [store.get(name).decode() for name in names]


def total(value):
    number = torch.tensor([float(value)])
    dist.all_reduce(number)
    return number.item()


def a_rank_dies_and_another_joins():
    name = dist.get_rank()
    assert dist._supports_reconfigure()
    error = error_of(lambda: total(1))
    assert error.kind == "not_connected" and "reconfigure" in str(error), error
    if name != 2:
        assert dist._reconfigure(1, handles("first", name, [0, 1])).wait()
        assert (dist.get_rank(), dist.get_world_size(), total(name + 1)) == (name, 2, 3.0)
        if name == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        error = error_of(lambda: total(1))
        assert error.ranks == [1], error
    # In an order of their own.
    dist._reconfigure(2, handles("second", name, [2, 0])).wait()
    assert (dist.get_rank(), dist.get_world_size()) == ([2, 0].index(name), 2)
    assert total(name + 1) == 4.0
    number = torch.tensor([name])
    dist.broadcast(number, 0)
    assert number.item() == 2
    # A set, in which all find the same order; and one member.
    members = handles("third", name, [2, 0])
    dist._reconfigure(3, set(members)).wait()
    gathered = [None, None]
    dist.all_gather_object(gathered, dist._get_reconfigure_handle())
    assert gathered == sorted(members)
    dist._reconfigure(4, [dist._get_reconfigure_handle()]).wait()
    assert (dist.get_rank(), dist.get_world_size(), total(5)) == (0, 1, 5.0)


def mistakes():
    name = dist.get_rank()
    members = handles("members", name, [0, 1])
    dist._reconfigure(1, members).wait()
    own = members[name]
    for uuid, others in [(1, members), (2, []), (2, ["somebody"]), (2, [own, own])]:
        try:
            dist._reconfigure(uuid, others)
        except (RuntimeError if others == members else ValueError):
            continue
        raise AssertionError(f"{uuid} {others} was accepted")
    # Nothing has changed.
    assert total(1) == 2.0


def operations_are_pending():
    name = dist.get_rank()
    dist._reconfigure(1, handles("members", name, [0, 1])).wait()
    members = handles("again", name, [0, 1])
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)] if name == 0 else []
    dist._reconfigure(2, members).wait()
    for work in works:
        error_of(work.wait)
    assert total(name) == 1.0


def a_member_does_not_come():
    name = dist.get_rank()
    members = handles("members", name, [0, 1])
    if name == 0:
        error = error_of(lambda: dist._reconfigure(1, members, timeout=datetime.timedelta(seconds=1)))
        assert (error.kind, error.ranks) == ("timeout", [1]), (error, error.kind)
        error = error_of(lambda: total(1))
        assert error.kind == "not_connected", error
    dist._reconfigure(2, handles("again", name, [0, 1])).wait()
    assert total(1) == 2.0


@unittest.skipIf(ranks.VERSION < (2, 15), "PyTorch reconfigures groups since 2.15")
class Reconfigure(unittest.TestCase):
    def test_a_dead_rank_is_replaced(self):
        for transport in ("auto", "tcp"):
            environment = {**ENVIRONMENT, "COMM_TRANSPORT": transport}
            processes = ranks.start(a_rank_dies_and_another_joins, 3, environment=environment)
            outputs = [process.communicate(timeout=120)[0] for process in processes]
            codes = [process.returncode for process in processes]
            self.assertEqual(codes, [0, -signal.SIGKILL, 0], "\n".join(outputs))

    def test_mistakes_change_nothing(self):
        ranks.run(mistakes, 2, environment=ENVIRONMENT)

    def test_pending_operations_end(self):
        ranks.run(operations_are_pending, 2, environment=ENVIRONMENT)

    def test_a_member_that_does_not_come_is_named(self):
        ranks.run(a_member_does_not_come, 2, environment=ENVIRONMENT)

    def test_a_connected_group_can_be_reconfigured(self):
        ranks.run(operations_are_pending, 2)


if __name__ == "__main__":
    unittest.main()
