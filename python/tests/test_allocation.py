"""Tensors in memory that other ranks of the host read in place."""

import unittest

import torch
import torch.distributed as dist

import ranks

CPU = torch.device("cpu")
# More than COMM_ZERO_COPY_BYTES, from which on memory is shared.
LARGE = 32 << 20


def allocate(size, dtype, group=None):
    return (group or dist.group.WORLD).allocate_tensor(size, dtype=dtype, device=CPU)


def shared_bytes():
    """Returns the bytes of shared memory that this process uses."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("RssShmem:"))
    return int(line.split()[1]) * 1024


def calls():
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.group.WORLD.supports_tensor_alloc(CPU)
    assert not dist.group.WORLD.supports_tensor_alloc(torch.device("cuda", 0))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool):
        for count in (0, 1, 1000, 1 << 20):
            own = allocate(count, dtype)
            assert own.dtype == dtype and own.shape == (count,) and not own.any(), dtype
            own.fill_(rank == 0)
            dist.all_reduce(own)
            assert own.all(), dtype
            dist.broadcast(own.fill_(rank), size - 1)
            assert (own == torch.full((), size - 1, dtype=dtype)).all(), dtype
    all = allocate(size * LARGE // 4, torch.float32)
    dist.all_gather_into_tensor(all, allocate(LARGE // 4, torch.float32).fill_(rank))
    assert all.view(size, -1).eq(torch.arange(size).view(-1, 1)).all()


def lifetime():
    before = shared_bytes()
    group = dist.new_group()
    tensor = allocate(LARGE, torch.uint8, group)
    tensor.fill_(1)
    view = tensor[LARGE - 4 :]
    dist.destroy_process_group(group)
    del group, tensor
    assert shared_bytes() - before >= LARGE, "the view is all that is left"
    dist.all_reduce(view)
    assert view.tolist() == [dist.get_world_size()] * 4
    del view
    assert shared_bytes() - before < LARGE // 2, "the memory was not freed"


class Allocation(unittest.TestCase):
    def test_tensors_have_exact_results_in_calls(self):
        for transport in ("auto", "tcp"):
            ranks.run(calls, 2, environment={"COMM_TRANSPORT": transport})

    def test_memory_lives_as_long_as_its_views(self):
        ranks.run(lifetime, 2)


if __name__ == "__main__":
    unittest.main()
