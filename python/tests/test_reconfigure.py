"""Groups whose members change: ranks die, others go on, and new processes join."""

import datetime
import os
import signal
import time
import unittest

import torch
import torch.distributed as dist

import ranks
from comm_torch import membership
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
    # Calls are counted from the start, as on the rank that is new.
    assert dist.group.WORLD._get_sequence_number_for_group() == 0
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
    # Nothing has changed, and no mistake has used the uuid.
    assert total(1) == 2.0
    dist._reconfigure(2, members).wait()
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
        fails_without_rank_1(lambda: dist._reconfigure(1, members, timeout=datetime.timedelta(seconds=1)))
    dist._reconfigure(2, handles("again", name, [0, 1])).wait()
    assert total(1) == 2.0
    # Now the group has members, which it leaves, and the deadline is that of its calls.
    if name == 0:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=1))
        fails_without_rank_1(lambda: dist._reconfigure(3, members))
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=60))
    dist._reconfigure(4, handles("at last", name, [0, 1])).wait()
    assert total(1) == 2.0


def fails_without_rank_1(reconfigure):
    began = time.monotonic()
    error = error_of(reconfigure)
    assert (error.kind, error.ranks) == ("timeout", [1]), (error, error.kind)
    assert time.monotonic() - began < 30
    error = error_of(lambda: total(1))
    assert error.kind == "not_connected", error


def two_groups_meet_at_once():
    name = dist.get_rank()
    group = name // 2
    members = [2 * group, 2 * group + 1]
    all = handles("members", name, members)
    # Rank 0 of one group and rank 1 of the other one look for each other first, if anyone does.
    store = dist.distributed_c10d._get_default_store()
    if name in (0, 3):
        store.set(f"begun {name}", "")
    else:
        store.wait(["begun 0", "begun 3"])
        time.sleep(0.3)
    dist._reconfigure(group, all).wait()
    assert (dist.get_rank(), dist.get_world_size(), total(name)) == (name % 2, 2, sum(members))


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

    def test_groups_with_other_uuids_do_not_meet(self):
        ranks.run(two_groups_meet_at_once, 4, environment=ENVIRONMENT)

    def test_members_of_a_set_have_the_order_of_their_handles(self):
        handles = [f"comm:host:{number:02}" for number in range(32)]
        for rank, own in enumerate(handles):
            self.assertEqual(membership.place(own, set(handles)), (rank, 32))
        # A list has its own order.
        self.assertEqual(membership.place(handles[0], handles[::-1]), (31, 32))

    def test_a_connected_group_can_be_reconfigured(self):
        ranks.run(operations_are_pending, 2)


if __name__ == "__main__":
    unittest.main()
