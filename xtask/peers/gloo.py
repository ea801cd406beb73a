"""Measures a collective of Gloo, through PyTorch: gloo.py RANKS COLLECTIVE SAMPLES SAMPLE_MS BYTES...

Starts the ranks on this machine. Measures as `commctl perf` does, with sums of f32: after two warm-up calls, a sample
is the average time of consecutive calls over SAMPLE_MS on the slowest rank, and the time is the median of the samples.
Sizes are defined as in nccl-tests. Rank 0 prints a JSON object per size. Every result is checked once, bit for bit,
before the measurement.
"""

import json
import math
import statistics
import sys
import time

import gloo_ranks

WARMUP = 2
GROWTH_MAX = 16
CALLS_MAX = 1 << 24


class Case:
    """A collective on buffers of one size: the call, and its expected result."""

    def __init__(self, name, rank, ranks, count):
        import torch
        import torch.distributed as dist

        self.torch, self.rank, self.ranks = torch, rank, ranks
        block = count // ranks
        self.in_place = name in ("all_reduce", "broadcast", "barrier")
        self.send, self.recv = torch.zeros(0 if self.in_place else count), torch.zeros(count)
        send, recv = self.send, self.recv
        self.result = recv[:block] if name == "reduce_scatter" else recv
        own_send, own_recv = send[:block], recv[:block]
        own = slice(rank * block, (rank + 1) * block)
        self.call, self.expected = {
            "all_reduce": (lambda: dist.all_reduce(recv), lambda: self.sum(count)),
            "broadcast": (lambda: dist.broadcast(recv, 0), lambda: self.contribution(0, count)),
            "all_gather": (
                lambda: dist.all_gather_into_tensor(recv, own_send),
                lambda: torch.cat([self.contribution(peer, block) for peer in range(ranks)]),
            ),
            "reduce_scatter": (lambda: dist.reduce_scatter_tensor(own_recv, send), lambda: self.sum(count)[own]),
            "all_to_all": (
                lambda: dist.all_to_all_single(recv, send),
                lambda: torch.cat([self.contribution(peer, count)[own] for peer in range(ranks)]),
            ),
            "barrier": (lambda: dist.barrier(), None),
        }[name]

    def contribution(self, rank, count):
        """Small integers, so that every sum is exact."""
        index = self.torch.arange(count, dtype=self.torch.int32)
        return index.mul_(7).add_(rank * 3).remainder_(16).to(self.torch.float32)

    def sum(self, count):
        total = self.contribution(0, count)
        for rank in range(1, self.ranks):
            total += self.contribution(rank, count)
        return total

    def check(self):
        if self.expected is None:
            return
        into = self.recv if self.in_place else self.send
        into.copy_(self.contribution(self.rank, len(into)))
        self.call()
        if not self.torch.equal(self.result, self.expected()):
            raise SystemExit("gloo.py: an element of the result is wrong")

    def clear(self):
        """Returns zeros, whose sums never become subnormal or infinite, which take longer to add."""
        self.send.zero_()
        self.recv.zero_()


def elapsed(call, calls):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def more_calls(calls, took, least):
    """Returns the same number if the calls took long enough, and otherwise a larger one."""
    if took >= least or calls >= CALLS_MAX:
        return calls
    needed = math.ceil(1.1 * calls * least / max(took, 1e-9))
    return min(max(needed, calls + 1), calls * GROWTH_MAX, CALLS_MAX)


def agree_on_calls(dist, torch, call, least):
    """Returns the number of calls of a sample, which rank 0 determines."""
    calls = 1
    while True:
        dist.barrier()
        following = torch.tensor([more_calls(calls, elapsed(call, calls), least)])
        dist.broadcast(following, 0)
        if following.item() == calls:
            return calls
        calls = int(following.item())


def measure(dist, torch, call, samples, least):
    for _ in range(WARMUP):
        call()
    calls = agree_on_calls(dist, torch, call, least)
    times = []
    for _ in range(samples):
        dist.barrier()
        times.append(elapsed(call, calls) / calls)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


def measure_all(torch, dist, rank, ranks, name, samples, least, sizes):
    for size in sizes:
        case = Case(name, rank, ranks, size // 4)
        case.check()
        case.clear()
        seconds = measure(dist, torch, case.call, samples, least)
        if rank == 0:
            row = {"collective": name, "ranks": ranks, "bytes": size, "time_us": {"p50": seconds * 1e6}}
            print(json.dumps(row), flush=True)


def main():
    ranks, name, samples, sample_ms, *sizes = sys.argv[1:]
    settings = (int(ranks), name, int(samples), float(sample_ms) / 1e3, [int(size) for size in sizes])
    gloo_ranks.run(int(ranks), lambda torch, dist, rank: measure_all(torch, dist, rank, *settings))


if __name__ == "__main__":
    main()
