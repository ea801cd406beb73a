"""Starts the ranks of a test as processes."""

import datetime
import os
import subprocess
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

import comm_torch  # noqa: F401  (registers the backend)

# The variable with which groups have no members until they are reconfigured.
RECONFIGURE = "COMM_TEST_RECONFIGURE"
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def start(function, size, backend="comm", seconds=60, environment=None):
    """Starts processes that call a function of a module, each as a rank, and returns them."""
    folder = tempfile.mkdtemp()
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        module = os.path.splitext(os.path.basename(sys.modules[module].__file__))[0]
    command = [sys.executable, __file__, module, name, backend, f"file://{folder}/store", str(size), str(seconds)]
    return [
        subprocess.Popen(
            [*command, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        for rank in range(size)
    ]


def run(function, size, backend="comm", seconds=60, environment=None):
    """Runs a function on all ranks, and returns what they print. Fails if a rank fails."""
    processes = start(function, size, backend, seconds, environment)
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode != 0:
            raise AssertionError(f"rank {rank} of {size} failed:\n{output}")
    return outputs


def monitored_barrier(**options):
    """Calls `dist.monitored_barrier`, which PyTorch has only for gloo before version 2.15."""
    dist.distributed_c10d._get_default_group().monitored_barrier(**options)


def _main():
    module, name, backend, store, size, seconds, rank = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    function = getattr(__import__(module), name)
    options = {"enable_reconfigure": True} if RECONFIGURE in os.environ else {}
    dist.init_process_group(
        backend,
        init_method=store,
        world_size=int(size),
        rank=int(rank),
        timeout=datetime.timedelta(seconds=float(seconds)),
        **options,
    )
    try:
        function()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        # Without leaving the group: other ranks must notice that this one has ended.
        os._exit(1)
    if backend == "gloo":
        # One of its threads may hold the last reference to the group, and then ends the process because it waits for
        # itself, as in some runs of DDP with PowerSGD.
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    _main()
