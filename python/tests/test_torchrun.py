"""torchrun with two agents, and a worker that is killed: both agents start theirs again."""

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

import torch
import torch.distributed as dist

import comm_torch  # noqa: F401  (registers the backend, which PyTorch does itself from 2.15 on)


def worker():
    if os.environ["RANK"] == "1":
        # The others wait for it in the store.
        time.sleep(1)
    dist.init_process_group("comm")
    rank, number = dist.get_rank(), torch.ones(1)
    dist.all_reduce(number)
    if rank == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        dist.all_reduce(number)
    print(f"rank {rank} has {number.item()}", flush=True)
    dist.destroy_process_group()


class Torchrun(unittest.TestCase):
    def test_two_agents_start_their_ranks_again(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=3"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"]
        agents = [
            subprocess.Popen(
                [*command, f"--node-rank={node}", __file__],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in range(2)
        ]
        output = "".join(agent.communicate(timeout=300)[0] for agent in agents)
        self.assertEqual([agent.returncode for agent in agents], [0, 0], output)
        for rank in range(4):
            self.assertIn(f"rank {rank} has 256.0", output)
        self.assertIn("rank 2 was lost", output)
        self.assertNotIn("waitForInput", output, "PyTorch warns of waits in its store that time out")


if __name__ == "__main__":
    worker() if "TORCHELASTIC_RESTART_COUNT" in os.environ else unittest.main()
