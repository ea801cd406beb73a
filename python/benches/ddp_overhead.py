"""Compares the time that DDP adds to a training step over comm and over gloo, in the same processes.

    torchrun --nproc-per-node 2 ddp_overhead.py

The model is an MLP with 25 million parameters. Prints the median time of a step alone, with gloo and
with comm on rank 0, and the ratio of what the two add.
"""

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import comm_torch  # noqa: F401  (registers the backend)

ROUNDS = 9


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def time_of_step(module, inputs, targets):
    dist.barrier()
    began = time.perf_counter()
    module.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(module(inputs), targets).backward()
    return time.perf_counter() - began


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    groups = {"gloo": dist.group.WORLD, "comm": dist.new_group(backend="comm")}
    modules = {"alone": model()}
    for name, group in groups.items():
        modules[name] = nn.parallel.DistributedDataParallel(model(), process_group=group)
    inputs, targets = torch.randn(16, 2048), torch.randint(10, (16,))
    times = {name: [] for name in modules}
    for index in range(ROUNDS + 1):
        for name, module in modules.items():
            took = time_of_step(module, inputs, targets)
            if index > 0:
                times[name].append(took)
    if dist.get_rank() == 0:
        alone, gloo, comm = (1e3 * statistics.median(times[name]) for name in ("alone", "gloo", "comm"))
        ratio = (comm - alone) / (gloo - alone)
        print(f"alone {alone:.1f} ms  gloo {gloo:.1f} ms  comm {comm:.1f} ms  ratio of overheads {ratio:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
