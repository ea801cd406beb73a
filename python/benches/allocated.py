"""Compares calls on tensors in memory of the group with calls on other tensors, in turns.

    torchrun --nproc-per-node 2 allocated.py

Prints the median times of a call on rank 0, and the median of the ratios of all rounds.
"""

import statistics
import time

import torch
import torch.distributed as dist

import comm_torch  # noqa: F401  (registers the backend)

SIZES = [4 << 20, 16 << 20, 64 << 20]
ROUNDS = 6


def time_of(call, calls):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def ordinary(size):
    return torch.zeros(size // 4)


def allocated(size):
    return dist.group.WORLD.allocate_tensor(size // 4, dtype=torch.float32, device=torch.device("cpu"))


def calls_on(create, size):
    """Returns the calls, by name, with tensors of this many bytes per rank."""
    own, part, all = create(size), create(size), create(size * dist.get_world_size())
    return {
        "all_reduce": lambda: dist.all_reduce(own),
        "broadcast": lambda: dist.broadcast(own, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(all, own),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, all),
    }


def main():
    dist.init_process_group("comm")
    torch.set_num_threads(1)
    for size in SIZES:
        created = {"ordinary": calls_on(ordinary, size), "allocated": calls_on(allocated, size)}
        for call in created["ordinary"]:
            times = {name: [] for name in created}
            for index in range(ROUNDS + 1):
                for name in sorted(created, reverse=index % 2 == 1):
                    took = time_of(created[name][call], max(3, (64 << 20) // size))
                    if index > 0:
                        times[name].append(took)
            if dist.get_rank() == 0:
                ratio = statistics.median(a / b for a, b in zip(times["allocated"], times["ordinary"]))
                ours, theirs = (1e3 * statistics.median(times[name]) for name in ("allocated", "ordinary"))
                line = f"allocated {ours:7.2f} ms  ordinary {theirs:7.2f} ms  ratio {ratio:.2f}"
                print(f"{call:14} {size >> 20:>3} MiB  {line}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
