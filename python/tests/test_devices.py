"""Tensors on GPUs, which NCCL reduces, in a group of the backend comm."""

import json
import os
import unittest

import torch
import torch.distributed as dist
from torch import nn

import ranks
import test_training as training

# Set if NCCL allows several ranks on a GPU (from 2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1).
SHARED = "COMM_TEST_SHARED_GPU"

# Older versions do not batch the messages of a group that is written in Python.
BATCHES = ranks.VERSION >= (2, 15)


def sizes():
    several = os.environ.get(SHARED) == "1" or torch.cuda.device_count() >= 2
    return (1, 2) if several else (1,)


def device():
    return torch.device("cuda", dist.get_rank() % torch.cuda.device_count())


def collectives():
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(device())
    for place in ("cpu", device()):
        mine = torch.arange(8, device=place) + rank
        total = mine.clone()
        dist.all_reduce(total)
        expected = size * torch.arange(8) + sum(range(size))
        assert total.device.type == torch.device(place).type
        assert torch.equal(total.cpu(), expected), total

        work = dist.all_reduce(mine.clone(), async_op=True)
        work.wait()

        gathered = torch.empty(8 * size, dtype=mine.dtype, device=place)
        dist.all_gather_into_tensor(gathered, mine)
        assert torch.equal(gathered.cpu(), torch.cat([torch.arange(8) + r for r in range(size)]))

        part = torch.empty(8, dtype=mine.dtype, device=place)
        dist.reduce_scatter_tensor(part, gathered)
        assert torch.equal(part, mine * size)

        dist.broadcast(part, src=size - 1)
        assert torch.equal(part.cpu(), size * (torch.arange(8) + size - 1))

        received = torch.empty_like(mine)
        if size > 1 and rank == 0:
            dist.send(mine, 1)
        elif rank == 1:
            dist.recv(received, 0)
            assert torch.equal(received.cpu(), torch.arange(8))
        if size > 1 and (place == "cpu" or BATCHES):
            to, source = (rank + 1) % size, (rank - 1) % size
            messages = [dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, received, source)]
            for work in dist.batch_isend_irecv(messages):
                work.wait()
            assert torch.equal(received.cpu(), torch.arange(8) + source)
    dist.barrier()
    dist.barrier(device_ids=[device().index])
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    group = dist.new_group(list(range(size)))
    total = torch.ones(3, device=device())
    dist.all_reduce(total, group=group)
    assert torch.equal(total.cpu(), torch.full((3,), float(size)))
    try:
        dist.all_reduce(torch.ones(2, device="meta"))
    except RuntimeError as error:
        assert "not on meta" in str(error), error
    else:
        raise AssertionError("a meta tensor was reduced")


def train(module):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in training.batches(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs.to(device())), targets.to(device()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("losses " + json.dumps(losses))


def ddp():
    torch.cuda.set_device(device())
    train(nn.parallel.DistributedDataParallel(training.model().to(device()), bucket_cap_mb=0.01))


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(device())
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    module = training.model().to(device())
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(module)


def losses(outputs):
    return [line for output in outputs for line in output.splitlines() if line.startswith("losses")]


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class Devices(unittest.TestCase):
    def test_tensors_on_hosts_and_gpus_are_reduced_in_one_group(self):
        for size in sizes():
            for backend in ("comm", "cpu:comm,cuda:nccl"):
                with self.subTest(size=size, backend=backend):
                    ranks.run(collectives, size, backend)

    def test_models_on_gpus_have_the_losses_of_nccl(self):
        for function in (ddp, fsdp):
            for size in sizes():
                with self.subTest(function=function.__name__, size=size):
                    ours = losses(ranks.run(function, size, "cpu:comm,cuda:nccl"))
                    self.assertEqual(len(ours), size)
                    self.assertEqual(ours, losses(ranks.run(function, size, "cpu:gloo,cuda:nccl")))


if __name__ == "__main__":
    unittest.main()
