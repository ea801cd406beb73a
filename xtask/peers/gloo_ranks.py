"""The ranks of a program on this machine, and their process group over Gloo."""

import os
import subprocess
import sys
import time
import warnings


def run(ranks, body):
    """Starts this program once per rank, and exits with 1 if one fails. As a rank, calls `body(torch, dist, rank)`."""
    rank = os.environ.get("COMPARE_RANK")
    if rank is None:
        sys.exit(launch(ranks))
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    store = dist.TCPStore("127.0.0.1", int(os.environ["COMPARE_STORE_PORT"]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=ranks)
    body(torch, dist, int(rank))
    dist.barrier()
    dist.destroy_process_group()


def launch(ranks):
    """Runs this program once per rank, and returns its exit code. The ranks use a store of this process."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = dict(
        os.environ,
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",
        COMPARE_STORE_PORT=str(store.port),
    )
    command = [sys.executable, *sys.argv]
    running = [subprocess.Popen(command, env=dict(environment, COMPARE_RANK=str(rank))) for rank in range(ranks)]
    while running:
        time.sleep(0.02)
        if any(process.poll() for process in running):
            for process in running:
                process.kill()
            return 1
        running = [process for process in running if process.returncode is None]
    return 0
