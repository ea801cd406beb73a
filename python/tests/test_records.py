"""Records of calls, which `commctl doctor` compares: each process group has its own."""

import collections
import json
import pathlib
import tempfile
import unittest

import torch
import torch.distributed as dist

import ranks

SIZE = 4


def calls_of_groups():
    rank = dist.get_rank()
    # Two groups without a common rank, and one of all ranks.
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    everyone = dist.new_group()
    for group in (None, halves[rank % 2], everyone):
        dist.all_reduce(torch.ones(10), group=group)
    # A group within a group.
    pair = halves[rank % 2].split_group([1, 0], group_name=f"pair {rank % 2}")
    pair.barrier().wait()
    dist.barrier()


class Records(unittest.TestCase):
    def test_each_group_has_records_with_the_ranks_in_the_world(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        ranks.run(calls_of_groups, SIZE, environment={"COMM_FLIGHT_DIR": str(folder), "COMM_FLIGHT_ON_CLOSE": "1"})
        records = [json.loads(file.read_text()) for file in folder.iterdir()]
        members = collections.defaultdict(set)
        processes = collections.defaultdict(set)
        for record in records:
            members[record["group"], tuple(record["members"])].add(record["members"][record["rank"]])
            processes[record["members"][record["rank"]]].add(record["pid"])
        found = sorted((list(listed), wrote) for (_, listed), wrote in members.items())
        everyone = {0, 1, 2, 3}
        halves = [([0, 2], {0, 2}), ([2, 0], {0, 2}), ([1, 3], {1, 3}), ([3, 1], {1, 3})]
        self.assertEqual(found, sorted([([0, 1, 2, 3], everyone), ([0, 1, 2, 3], everyone), *halves]))
        self.assertIn((0, (0, 1, 2, 3)), members)
        self.assertEqual([len(processes[rank]) for rank in range(SIZE)], [1] * SIZE)


if __name__ == "__main__":
    unittest.main()
