"""Measures a collective of Gloo, through PyTorch: gloo.py RANKS COLLECTIVE SAMPLES SAMPLE_MS ROTATED BYTES...

Starts the ranks on this machine. Measures as `commctl perf` does, with sums of f32: after barriers for SETTLE and two
warm-up calls per size, a sample is the average time of consecutive calls over SAMPLE_MS on the slowest rank, and the
time is the median of the samples. Sizes are defined as in nccl-tests. Rank 0 prints a JSON object per size. Every
result is checked once, bit for bit, before the measurement.

With ROTATED above 0, each call uses another copy of the buffers, so many that they have this size together, at most
COPIES_MAX, and each is written after its call, outside the measured time.
"""

import json
import math
import statistics
import sys
import time

import gloo_ranks

WARMUP = 2
SETTLE = 0.4
GROWTH_MAX = 16
CALLS_MAX = 1 << 24
COPIES_MAX = 1024


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
            "send_recv": (self.send_recv, lambda: self.contribution(1 - rank, count)),
        }[name]
        # The number of messages that a call transfers one after the other; the time is that of one.
        self.transfers = 2 if name == "send_recv" else 1

    def send_recv(self):
        """Sends a message to the other rank and back."""
        import torch.distributed as dist

        peer = 1 - self.rank
        if self.rank == 0:
            dist.send(self.send, peer)
        dist.recv(self.recv, peer)
        if self.rank == 1:
            dist.send(self.send, peer)

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
        """Fills the buffers as measure.h does."""
        self.send.fill_(-0.0)
        self.recv.fill_(-0.0)


class Rotation:
    """Calls on copies of the buffers in turn, or on the same buffers again and again."""

    def __init__(self, cases, rotates):
        self.cases, self.rotates, self.turn = cases, rotates, 0

    def elapsed(self, calls):
        if not self.rotates:
            call, start = self.cases[0].call, time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - start
        total = 0.0
        for _ in range(calls):
            case = self.cases[self.turn]
            start = time.perf_counter()
            case.call()
            total += time.perf_counter() - start
            (case.recv if case.in_place else case.send).fill_(-0.0)
            self.turn = (self.turn + 1) % len(self.cases)
        return total


def more_calls(calls, took, least):
    """Returns the same number if the calls took long enough, and otherwise a larger one."""
    if took >= least or calls >= CALLS_MAX:
        return calls
    needed = math.ceil(1.1 * calls * least / max(took, 1e-9))
    return min(max(needed, calls + 1), calls * GROWTH_MAX, CALLS_MAX)


def agree_on_calls(dist, torch, rotation, least):
    """Returns the number of calls of a sample, which rank 0 determines."""
    calls = 1
    while True:
        dist.barrier()
        following = torch.tensor([more_calls(calls, rotation.elapsed(calls), least)])
        dist.broadcast(following, 0)
        if following.item() == calls:
            return calls
        calls = int(following.item())


class Barriers:
    """Calls that move nothing."""

    def elapsed(self, calls):
        import torch.distributed as dist

        start = time.perf_counter()
        for _ in range(calls):
            dist.barrier()
        return time.perf_counter() - start


def measure(dist, torch, rotation, samples, least):
    rotation.elapsed(WARMUP)
    calls = agree_on_calls(dist, torch, rotation, least)
    times = []
    for _ in range(samples):
        dist.barrier()
        times.append(rotation.elapsed(calls) / calls)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


def copies(rotated, size):
    return min(max(math.ceil(rotated / max(size, 1)), 1), COPIES_MAX)


def measure_all(torch, dist, rank, ranks, name, samples, least, rotated, sizes):
    # Until then, the scheduler has spread the ranks over the processors.
    agree_on_calls(dist, torch, Barriers(), SETTLE)
    for size in sizes:
        cases = [Case(name, rank, ranks, size // 4) for _ in range(copies(rotated, size))]
        cases[0].check()
        cases[0].clear()
        seconds = measure(dist, torch, Rotation(cases, rotated > 0), samples, least) / cases[0].transfers
        if rank == 0:
            row = {"collective": name, "ranks": ranks, "bytes": size, "time_us": {"p50": seconds * 1e6}}
            print(json.dumps(row), flush=True)


def main():
    ranks, name, samples, sample_ms, rotated, *sizes = sys.argv[1:]
    sizes = [int(size) for size in sizes]
    settings = (int(ranks), name, int(samples), float(sample_ms) / 1e3, int(rotated), sizes)
    gloo_ranks.run(int(ranks), lambda torch, dist, rank: measure_all(torch, dist, rank, *settings))


if __name__ == "__main__":
    main()
