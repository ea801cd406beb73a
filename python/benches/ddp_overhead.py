"""Compares the time that DDP adds to a training step over comm and over gloo, in the same processes.

    torchrun --nproc-per-node 2 ddp_overhead.py

The model is an MLP with 25 million parameters. Each library runs with several settings of DDP, in
turns. Prints the median time of a step with each on rank 0, and the ratio of what the two add with the
settings that serve each best.
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


SETTINGS = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "views, 100 MiB": {"gradient_as_bucket_view": True, "bucket_cap_mb": 100},
}


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    groups = {"gloo": dist.group.WORLD, "comm": dist.new_group(backend="comm")}
    modules = {("alone", ""): model()}
    for name, settings in SETTINGS.items():
        for library, group in groups.items():
            modules[library, name] = nn.parallel.DistributedDataParallel(model(), process_group=group, **settings)
    inputs, targets = torch.randn(16, 2048), torch.randint(10, (16,))
    times = {key: [] for key in modules}
    for index in range(ROUNDS + 1):
        for key, module in modules.items():
            took = time_of_step(module, inputs, targets)
            if index > 0:
                times[key].append(took)
    if dist.get_rank() == 0:
        medians = {key: 1e3 * statistics.median(times[key]) for key in times}
        for (library, name), took in medians.items():
            print(f"{library:6} {name:16} {took:6.1f} ms", flush=True)
        alone = medians["alone", ""]
        added = {library: min(medians[library, name] for name in SETTINGS) - alone for library in groups}
        print(f"ratio of the smallest overheads {added['comm'] / added['gloo']:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
