"""Runs PyTorch's own tests of backends, which its package contains.

BACKEND is comm, gloo, or comm-as-gloo, which gives comm the name of gloo, so that it passes for it
in the tests that only gloo is expected to pass. WORLD_SIZE is the number of ranks.
"""

import os

os.environ.setdefault("BACKEND", "comm")
# The processes that a test starts import this file, too.
os.environ["BACKEND"] = os.environ.setdefault("COMM_TEST_BACKEND", os.environ["BACKEND"])
os.environ.setdefault("WORLD_SIZE", "2")
# PyTorch's tests choose the address and port of their store.
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

import comm_torch  # noqa: E402, F401  (registers the backend)
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402

BACKEND = os.environ["BACKEND"]
if BACKEND == "comm-as-gloo":
    comm_torch.register("gloo")
    os.environ["BACKEND"] = "gloo"
elif BACKEND == "comm":
    for feature in ("gpu", "cuda", "ddp", "subgroup"):
        DistTestCases.backend_feature.setdefault(feature, set())
    DistTestCases.backend_feature["ddp"].add("comm")
    DistTestCases.backend_feature["subgroup"].add("comm")
    DistTestCases.backend_feature["plugin"].add("comm")

from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
