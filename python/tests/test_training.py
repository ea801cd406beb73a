"""Training with what PyTorch offers, compared with gloo."""

import json
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

import comm_torch
import ranks

# The method by which FSDP2 gets the memory of its collectives from the group.
ALLOCATE = "set_allocate_memory_from_process_group_for_comm"


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 5))


def batches(steps):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        yield torch.randn(16, 20, generator=generator), torch.randint(5, (16,), generator=generator)


def train(module, parameters):
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for inputs, targets in batches(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("losses " + json.dumps(losses))


def ddp():
    module = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01)
    train(module, module.parameters())


def ddp_with_powersgd():
    """The callback of a collective waits for the next one."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    # In one bucket, because the order of the calls of several would depend on time.
    module = nn.parallel.DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(module, module.parameters())


def fsdp_with_a_divisor():
    """FSDP2 divides by a number that is not that of the ranks with PREMUL_SUM."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    gradients = []
    for divisor in (None, 8.0):
        module = nn.Linear(6, 4)
        nn.init.ones_(module.weight)
        fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        if divisor is not None:
            # PyTorch 2.7 has another name for it.
            former = getattr(module, "set_reduce_scatter_divide_factor", None)
            getattr(module, "set_gradient_divide_factor", former)(divisor)
        module(torch.full((2, 6), dist.get_rank() + 1.0)).sum().backward()
        gradients.append(module.weight.grad.full_tensor())
    assert torch.equal(gradients[0] * dist.get_world_size(), gradients[1] * 8), gradients


def fsdp(prepare=lambda _: None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    prepare(module)
    train(module, module.parameters())


def fsdp_in_allocated_memory():
    sizes = []
    allocate_tensor = comm_torch.CommProcessGroup.allocate_tensor

    def counted(self, size, **options):
        sizes.append(size)
        return allocate_tensor(self, size, **options)

    comm_torch.CommProcessGroup.allocate_tensor = counted

    def prepare(module):
        for part in module.modules():
            if isinstance(part, FSDPModule):
                getattr(part, ALLOCATE)(dist.get_backend() == "comm")

    fsdp(prepare)
    assert bool(sizes) == (dist.get_backend() == "comm"), sizes


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    left, right = torch.randint(9, (8, 6)).double(), torch.randint(9, (6, 4)).double()
    product = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), left @ right)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    assert torch.equal(product.full_tensor(), left @ right)


def checkpoint():
    import tempfile

    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    state = {"replicated": torch.arange(10.0), f"own{dist.get_rank()}": torch.full((3,), float(dist.get_rank()))}
    dcp.save(state, checkpoint_id=folder[0])
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, checkpoint_id=folder[0])
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def losses(outputs):
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("losses ")]
    return [json.loads(line.removeprefix("losses ")) for line in lines]


class Training(unittest.TestCase):
    def assert_same_losses(self, function, size):
        ours, gloos = (losses(ranks.run(function, size, backend)) for backend in ("comm", "gloo"))
        self.assertEqual(len(ours), size)
        for our, gloo in zip(ours, gloos, strict=True):
            for a, b in zip(our, gloo, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5)

    def test_ddp_has_the_losses_of_gloo(self):
        self.assert_same_losses(ddp, 2)

    def test_powersgd_has_the_losses_of_gloo(self):
        self.assert_same_losses(ddp_with_powersgd, 2)

    def test_fsdp_has_the_losses_of_gloo(self):
        self.assert_same_losses(fsdp, 2)

    @unittest.skipUnless(hasattr(FSDPModule, ALLOCATE), "this PyTorch does not ask groups for memory")
    def test_fsdp_has_the_losses_of_gloo_in_memory_of_the_group(self):
        self.assert_same_losses(fsdp_in_allocated_memory, 2)

    def test_fsdp_divides_gradients_by_any_number(self):
        ranks.run(fsdp_with_a_divisor, 2)

    def test_distributed_tensors_and_checkpoints(self):
        ranks.run(tensor_parallel, 2)
        ranks.run(checkpoint, 2)


if __name__ == "__main__":
    unittest.main()
