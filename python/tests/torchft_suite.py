"""Runs torchft's own tests of process groups, which its package contains, on comm."""

import unittest
from datetime import timedelta

from parameterized import parameterized
from torchft import process_group_test as theirs
from torchft.process_group import ProcessGroupWrapper

from comm_torch import CommProcessGroup


class Reconfigurable(ProcessGroupWrapper):
    """A process group that torchft creates anew when ranks have left or joined."""

    def _create_pg(self, store, rank, world_size):
        return CommProcessGroup(store, rank, world_size, self._timeout)

    def getBackendName(self):
        return "torchft-comm"


class CommTest(theirs.MultiPgBaseTest):
    BACKEND = "comm"
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        return Reconfigurable(timeout=timedelta(seconds=10))

    def assertRaisesRegex(self, exception, pattern):
        # The tests list the words of gloo and of NCCL.
        return super().assertRaisesRegex(exception, f"{pattern}|rank 2 was lost|aborted by rank")

    @parameterized.expand(theirs._ALL_COLLECTIVES)
    def test_collective(self, collective):
        self._run_parallel(collective)

    @parameterized.expand(theirs._ALL_COLLECTIVES)
    def test_collective_with_resiliency(self, collective):
        self._run_with_resiliency(collective)


if __name__ == "__main__":
    unittest.main()
