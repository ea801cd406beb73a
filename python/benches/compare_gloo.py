"""Compares calls of comm with those of gloo, in turns, in the same processes.

    torchrun --nproc-per-node 2 compare_gloo.py

Prints the median time of a call on rank 0, and the median of the ratios of all rounds.
"""

import statistics
import time

import torch
import torch.distributed as dist

import comm_torch  # noqa: F401  (registers the backend)

SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ROUNDS = 9


def time_of_call(group, call, tensor, calls):
    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(calls):
        call(tensor, group)
    return (time.perf_counter() - began) / calls


def all_reduce(tensor, group):
    dist.all_reduce(tensor, group=group)


def broadcast(tensor, group):
    dist.broadcast(tensor, 0, group=group)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    groups = {"gloo": dist.group.WORLD, "comm": dist.new_group(backend="comm")}
    for call in (all_reduce, broadcast):
        for size in SIZES:
            tensor = torch.zeros(size // 4)
            calls = max(3, min(300, (32 << 20) // size))
            times = {name: [] for name in groups}
            for index in range(ROUNDS + 1):
                for name in sorted(groups, reverse=index % 2 == 1):
                    took = time_of_call(groups[name], call, tensor, calls)
                    if index > 0:
                        times[name].append(took)
            if dist.get_rank() == 0:
                ratio = statistics.median(ours / theirs for ours, theirs in zip(times["comm"], times["gloo"]))
                comm, gloo = (1e6 * statistics.median(times[name]) for name in ("comm", "gloo"))
                print(f"{call.__name__:10} {size:>9} B  comm {comm:9.1f} us  gloo {gloo:9.1f} us  ratio {ratio:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
