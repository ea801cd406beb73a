"""Measures the time that PyTorch's DDP over Gloo adds to a training step: ddp.py RANKS PAIRS BLOCK_MS MODELS VARIANTS.

Starts the ranks on this machine, with one compute thread each. Measures as the program `ddp` of the package `benches`
does, on the same models, weights and samples, in f32. A block is a number of consecutive steps
over BLOCK_MS after a barrier, and its time is the average per step on the slowest rank. A pair is a block with
synchronization and one without (`no_sync`) in the same processes, in alternating order. The overhead of a pair is the
difference of its times per step. Rank 0 prints a JSON object per model and variant.

Variants are: default; view (gradient_as_bucket_view=True); bf16 and bf16-view (the hook bf16_compress_hook).
"""

import json
import math
import sys
import time

import gloo_ranks

LEARNING_RATE = 1e-3
WARMUP = 3
STEPS_MIN = 3
# Sizes of the layers, the batch, and the microseconds of computation that replace the backward pass of each layer.
MODELS = {
    "mlp-25m": ([1024, 4096, 4096, 1024], 32, None),
    "mlp-0.7m": ([784, 512, 512, 10], 64, None),
    "fixed-25m": ([1024, 4096, 4096, 1024], 32, [10_000, 40_000, 10_000]),
    "fixed-0.7m": ([784, 512, 512, 10], 64, [1_000, 700, 100]),
}
VARIANTS = {
    "default": (False, False),
    "view": (True, False),
    "bf16": (False, True),
    "bf16-view": (True, True),
}


def numbers(torch, count, seed):
    """Numbers in -1..1 that depend only on their index and a seed, equal to those in `benches`."""
    index = torch.arange(count, dtype=torch.int64).add_(seed << 32)
    # The finalizer of MurmurHash3, in the lower 32 bits of 64-bit integers.
    mask = 0xFFFFFFFF
    bits = index.bitwise_and(mask).bitwise_xor_(index >> 32).mul_(0x9E3779B1).bitwise_and_(mask)
    bits = bits.bitwise_xor(bits >> 16).mul_(0x85EBCA6B).bitwise_and_(mask)
    bits = bits.bitwise_xor(bits >> 13)
    return (bits >> 8).to(torch.float32).mul_(2.0 / (1 << 24)).sub_(1.0)


def perceptron(torch, sizes):
    nn = torch.nn
    layers = []
    for number, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            bound = math.sqrt(6.0 / inputs)
            layer.weight.copy_(numbers(torch, inputs * outputs, number).mul_(bound).view(outputs, inputs))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def compute(microseconds):
    """Keeps the processor busy for an amount of this thread's CPU time, in the cache and without Python's lock."""
    from hashlib import pbkdf2_hmac

    end = time.thread_time_ns() + microseconds * 1000
    while time.thread_time_ns() < end:
        pbkdf2_hmac("sha256", b"", b"", 50)


def fixed(torch, sizes, costs):
    """Layers whose backward pass uses the processor for a fixed time, and does not change their gradients."""

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(context, below, weight, bias, layer):
            context.layer = layer
            return below.clone()

        @staticmethod
        def backward(context, above):
            layer = context.layer
            compute(layer.cost)
            # New tensors over the same memory, which autograd accepts without a copy.
            return above, layer.slopes[0].detach(), layer.slopes[1].detach(), None

    class Layer(torch.nn.Module):
        def __init__(self, inputs, outputs, cost):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs))
            self.bias = torch.nn.Parameter(torch.zeros(outputs))
            self.slopes = [torch.ones(outputs, inputs), torch.ones(outputs)]
            self.cost = cost

        def forward(self, below):
            return Backward.apply(below, self.weight, self.bias, self)

    shapes = zip(sizes, sizes[1:], costs)
    return torch.nn.Sequential(*[Layer(inputs, outputs, cost) for inputs, outputs, cost in shapes])


class Training:
    """A replica, and its step with and without synchronization."""

    def __init__(self, torch, dist, model, variant):
        sizes, batch, costs = MODELS[model]
        view, bf16 = VARIANTS[variant]
        rank = dist.get_rank()
        self.torch = torch
        self.fixed = costs is not None
        self.module = fixed(torch, sizes, costs) if self.fixed else perceptron(torch, sizes)
        self.parameters = sum(parameter.numel() for parameter in self.module.parameters())
        self.net = torch.nn.parallel.DistributedDataParallel(self.module, gradient_as_bucket_view=view)
        if bf16:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            self.net.register_comm_hook(None, bf16_compress_hook)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=LEARNING_RATE)
        if self.fixed:
            self.inputs = torch.ones(1, requires_grad=True)
        else:
            self.inputs = numbers(torch, batch * sizes[0], 1000 + rank).view(batch, sizes[0])
            self.labels = (torch.arange(batch) * 7 + rank) % min(sizes[-1], 256)

    def step(self):
        self.optimizer.zero_grad()
        if self.fixed:
            # A step consists only of its computation, because there are no gradients to apply.
            self.net(self.inputs).sum().backward()
            return 0.0
        loss = self.torch.nn.functional.cross_entropy(self.net(self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def local_step(self):
        with self.net.no_sync():
            return self.step()

    def gradients(self):
        return [parameter.grad for parameter in self.module.parameters()]


def check(torch, dist, training, variant):
    """Returns the loss of the first step and the norm of its averages, which are compared with those of all-reduce."""
    before = [parameter.detach().clone() for parameter in training.module.parameters()]
    training.local_step()
    expected = [gradient.clone() for gradient in training.gradients()]
    for gradient in expected:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    with torch.no_grad():
        for parameter, value in zip(training.module.parameters(), before):
            parameter.copy_(value)
    loss = float(training.step())
    error = sum(float((a - b).double().square().sum()) for a, b in zip(expected, training.gradients()))
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in training.gradients()))
    allowed = 1e-2 if variant.startswith("bf16") else 1e-6
    if not math.sqrt(error) <= allowed * norm:
        raise SystemExit(f"ddp.py: the averages of {variant} differ by {math.sqrt(error)} from those of all ranks, {norm}")
    return loss, norm


def elapsed(dist, step, steps):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def measure(torch, dist, training, pairs, least):
    for step in [training.step, training.local_step] * WARMUP:
        step()
    steps = torch.tensor([max(STEPS_MIN, math.ceil(least / elapsed(dist, training.step, STEPS_MIN)))])
    dist.broadcast(steps, 0)
    steps = int(steps.item())
    kinds = [(0, training.step), (1, training.local_step)]
    times = torch.zeros(pairs, 2, dtype=torch.float64)
    for pair in range(pairs):
        for kind, step in kinds if pair % 2 == 0 else reversed(kinds):
            times[pair, kind] = elapsed(dist, step, steps)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return steps, (times * 1e6).tolist()


def measure_all(torch, dist, rank, ranks, pairs, least, models, variants):
    for model in models:
        for variant in variants:
            training = Training(torch, dist, model, variant)
            loss, norm = check(torch, dist, training, variant)
            steps, times = measure(torch, dist, training, pairs, least)
            if rank == 0:
                row = {
                    "model": model,
                    "variant": variant,
                    "ranks": ranks,
                    "parameters": training.parameters,
                    "loss": loss,
                    "norm": norm,
                    "steps": steps,
                    "pairs_us": times,
                }
                print(json.dumps(row), flush=True)
            dist.barrier()


def main():
    ranks, pairs, block_ms, models, variants = sys.argv[1:]
    settings = (int(ranks), int(pairs), float(block_ms) / 1e3, models.split(","), variants.split(","))
    gloo_ranks.run(int(ranks), lambda torch, dist, rank: measure_all(torch, dist, rank, *settings))


if __name__ == "__main__":
    main()
