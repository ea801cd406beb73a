"""Every collective, in every form and for every type, against values computed on each rank."""

import unittest

import torch
import torch.distributed as dist

import ranks

NUMBERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
COMPLEX = [torch.complex64, torch.complex128]
OTHERS = [torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def contribution(rank, count, dtype, salt=0):
    """Returns small whole numbers, which all types represent exactly, also after a sum."""
    values = (torch.arange(count) * 7 + rank * 3 + salt) % 5 + 1
    if dtype == torch.bool:
        return values % 2 == 0
    if dtype.is_complex:
        return torch.complex(values.double(), -values.double() - 1).to(dtype)
    return values.float().to(dtype)


def assert_equal(got, expected, what):
    """Compares bit for bit; PyTorch cannot compare all types."""
    got, expected = got.resolve_conj().contiguous(), expected.resolve_conj().contiguous()
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    as_bytes = [tensor.reshape(-1).view(torch.uint8).tolist() for tensor in (got, expected)]
    assert as_bytes[0] == as_bytes[1], f"{what}: {got}, not {expected}"


def layouts(tensor):
    """Returns tensors with these elements in several layouts of memory."""
    yield tensor.clone()
    if tensor.numel() % 2 == 0 and tensor.numel() > 0:
        yield tensor.reshape(2, -1).t().contiguous().t()
        spread = tensor.new_zeros(tensor.numel() * 2).reshape(-1, 2)
        spread[:, 0] = tensor
        yield spread[:, 0]


def all_reduce():
    rank, size = dist.get_rank(), dist.get_world_size()
    operators = {
        dist.ReduceOp.SUM: lambda all: sum(all[1:], start=all[0]),
        dist.ReduceOp.PRODUCT: lambda all: torch.stack(all).prod(0).to(all[0].dtype),
        dist.ReduceOp.MIN: lambda all: torch.stack(all).amin(0),
        dist.ReduceOp.MAX: lambda all: torch.stack(all).amax(0),
    }
    for dtype in NUMBERS:
        for op, expected in operators.items():
            for count in (0, 1, 4, 1000):
                all = [contribution(peer, count, dtype) for peer in range(size)]
                for tensor in layouts(all[rank]):
                    for asynchronous in (False, True):
                        own = tensor.clone(memory_format=torch.preserve_format)
                        work = dist.all_reduce(own, op, async_op=asynchronous)
                        if asynchronous:
                            assert work.wait() and work.is_completed() and work.exception() is None
                        result = expected(all).reshape(own.shape) if count else own
                        assert_equal(own, result, f"{op} of {count} {dtype}")
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        bitwise = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
        for dtype in (torch.int32, torch.uint8, torch.int64, torch.bool):
            all = [contribution(peer, 100, dtype) for peer in range(size)]
            own, expected = all[rank].clone(), all[0]
            for other in all[1:]:
                expected = bitwise[str(op).rsplit(".", 1)[-1]](expected, other)
            dist.all_reduce(own, op)
            assert_equal(own, expected, f"{op} of {dtype}")
    for dtype in COMPLEX:
        all = [contribution(peer, 10, dtype) for peer in range(size)]
        own = all[rank].clone()
        dist.all_reduce(own)
        assert_equal(own, sum(all[1:], start=all[0]), f"sum of {dtype}")
    marked()
    premultiplied_sums()
    own = torch.full((5,), float(rank))
    dist.all_reduce(own, dist.ReduceOp.AVG)
    assert_equal(own, torch.full((5,), (size - 1) / 2), "average")
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags)
    assert_equal(flags, torch.tensor([True, True, False]), "sum of flags")
    for dtype, op in [(torch.float8_e5m2, dist.ReduceOp.SUM), (torch.bool, dist.ReduceOp.AVG)]:
        try:
            dist.all_reduce(torch.zeros(3).to(dtype), op)
        except (TypeError, RuntimeError):
            continue
        raise AssertionError(f"{op} of {dtype} is not defined")


def marked():
    """PyTorch marks some tensors as negated or conjugated, and their memory stays as it is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, mark in [(torch.float32, lambda tensor: torch._neg_view(-tensor)), (torch.complex64, torch.conj)]:
        all = [mark(contribution(peer, 10, dtype)) for peer in range(size)]
        own = all[rank]
        assert own.is_contiguous() and (own.is_neg() or own.is_conj())
        all = [tensor.resolve_conj().resolve_neg() for tensor in all]
        if rank > 0:
            # If all had marks, the sum of their memory would be right.
            own = all[rank].clone()
        dist.group.WORLD.allreduce([own], dist.AllreduceOptions()).wait()
        assert_equal(own.resolve_neg(), sum(all[1:], start=all[0]), f"sum of marked {dtype}")


def premultiplied_sums():
    """Each rank has a factor of its own, also as a tensor. Contributions stay as they are."""
    rank, size = dist.get_rank(), dist.get_world_size()
    factors = [1.5 + peer for peer in range(size)]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, *COMPLEX):
        all = [contribution(peer, 6 * size, dtype) for peer in range(size)]
        total = sum(factor * tensor for factor, tensor in zip(factors, all, strict=True))
        for factor in (factors[rank], torch.tensor([factors[rank]])):
            op = dist._make_nccl_premul_sum(factor)
            for tensor in layouts(all[rank]):
                dist.all_reduce(tensor, op)
                assert_equal(tensor, total.reshape(tensor.shape), f"all_reduce of {dtype}")
            own = all[rank].clone()
            dist.reduce(own, 0, op)
            assert_equal(own, all[rank] if rank else total, f"reduce of {dtype}")
            part = total.new_empty(6)
            dist.reduce_scatter_tensor(part, all[rank], op)
            assert_equal(part, total[6 * rank : 6 * rank + 6], f"reduce_scatter of {dtype}")
            assert_equal(all[rank], contribution(rank, 6 * size, dtype), "the input")
    for dtype in (torch.int32, torch.bool):
        try:
            dist.all_reduce(torch.zeros(3, dtype=dtype), dist._make_nccl_premul_sum(0.5))
        except TypeError:
            continue
        raise AssertionError(f"PREMUL_SUM of {dtype} is not defined")


def parameters():
    """Parameters of a model are changed in place, whatever their layout is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for contiguous in (True, False):
        values = torch.full((2, 3), float(rank))
        parameter = torch.nn.Parameter(values if contiguous else values.t().contiguous().t())
        dist.all_reduce(parameter)
        dist.broadcast(parameter, 0)
        dist.all_reduce_coalesced([parameter, torch.ones(1)])
        total = torch.full((2, 3), size * (size - 1) / 2 * size)
        assert_equal(parameter.detach(), total, "a parameter")
        assert parameter.is_leaf and parameter.requires_grad


def moves():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in NUMBERS + COMPLEX + OTHERS:
        for count in (0, 1, 6, 1000):
            all = [contribution(peer, count, dtype) for peer in range(size)]
            own = all[rank]
            for root in range(size):
                sent = own.clone()
                dist.broadcast(sent, root)
                assert_equal(sent, all[root], f"broadcast of {count} {dtype}")
                gathered = [torch.empty_like(own) for _ in range(size)] if rank == root else None
                dist.gather(own, gathered, root)
                if rank == root:
                    for peer in range(size):
                        assert_equal(gathered[peer], all[peer], f"gather of {count} {dtype}")
                parts = [contribution(root, count, dtype, peer) for peer in range(size)] if rank == root else None
                received = torch.empty_like(own)
                dist.scatter(received, parts, root)
                assert_equal(received, contribution(root, count, dtype, rank), f"scatter of {dtype}")
            gathered = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(gathered, own)
            flat = torch.empty_like(own).repeat(size)
            dist.all_gather_into_tensor(flat, own)
            chunks = torch.empty_like(own).repeat(size)
            dist.all_gather(list(chunks.chunk(size)) if count else [chunks] * size, own)
            for got in (torch.cat([part.view(torch.uint8) for part in gathered]), flat.view(torch.uint8), chunks.view(torch.uint8)):
                assert_equal(got, torch.cat([part.view(torch.uint8) for part in all]), f"gather of {dtype}")
            sent = [contribution(rank, count, dtype, peer) for peer in range(size)]
            received = [torch.empty_like(own) for _ in range(size)]
            dist.all_to_all(received, sent)
            for peer in range(size):
                assert_equal(received[peer], contribution(peer, count, dtype, rank), f"all_to_all of {dtype}")


def uneven():
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [[(peer + to) % 3 for to in range(size)] for peer in range(size)]
    sent = torch.cat([torch.full((rows[rank][to], 2), 10 * rank + to) for to in range(size)])
    received = torch.empty(sum(rows[peer][rank] for peer in range(size)), 2, dtype=torch.int64)
    dist.all_to_all_single(received, sent, [rows[peer][rank] for peer in range(size)], rows[rank])
    expected = torch.cat([torch.full((rows[peer][rank], 2), 10 * peer + rank) for peer in range(size)])
    assert_equal(received, expected, "rows of unequal numbers")
    gathered = [torch.empty(peer, dtype=torch.int64) for peer in range(size)]
    dist.all_gather(gathered, torch.full((rank,), rank))
    for peer in range(size):
        assert_equal(gathered[peer], torch.full((peer,), peer), "tensors of unequal lengths")
    inputs = [torch.full((peer + 1,), float(rank)) for peer in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, inputs)
    assert_equal(output, torch.full((rank + 1,), size * (size - 1) / 2), "blocks of unequal lengths")


def reductions_to_some():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in NUMBERS:
        for count in (1, 6, 1000):
            blocks = [[contribution(peer, count, dtype, to) for to in range(size)] for peer in range(size)]
            expected = sum((blocks[peer][rank] for peer in range(1, size)), start=blocks[0][rank])
            output = torch.empty_like(expected)
            dist.reduce_scatter(output, [block.clone() for block in blocks[rank]])
            assert_equal(output, expected, f"reduce_scatter of {dtype}")
            joined = torch.cat(blocks[rank])
            dist.reduce_scatter_tensor(output, joined)
            assert_equal(output, expected, f"reduce_scatter_tensor of {dtype}")
            assert_equal(joined, torch.cat(blocks[rank]), "the input is unchanged")
            # The result lies within the input.
            dist.reduce_scatter_tensor(joined[rank * count : (rank + 1) * count], joined)
            after = torch.cat(blocks[rank])
            after[rank * count : (rank + 1) * count] = expected
            assert_equal(joined, after, "a result within the input")
            for root in range(size):
                own = contribution(rank, count, dtype)
                dist.reduce(own, root)
                all = [contribution(peer, count, dtype) for peer in range(size)]
                wanted = sum(all[1:], start=all[0]) if rank == root else all[rank]
                assert_equal(own, wanted, f"reduce of {dtype}")
    # The contribution lies within the result.
    everything = torch.zeros(size * 5)
    everything[rank * 5 : (rank + 1) * 5] = rank
    dist.all_gather_into_tensor(everything, everything[rank * 5 : (rank + 1) * 5])
    assert_equal(everything, torch.arange(float(size)).repeat_interleave(5), "gather in place")


def coalesced():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((count,), float(rank + count)) for count in (3, 0, 5)]
    dist.all_reduce_coalesced(tensors)
    for tensor, count in zip(tensors, (3, 0, 5), strict=True):
        total = float(sum(peer + count for peer in range(size)))
        assert_equal(tensor, torch.full((count,), total), "coalesced all_reduce")
    with dist._coalescing_manager() as manager:
        outputs = [torch.empty(size * count) for count in (2, 4)]
        for output, count in zip(outputs, (2, 4), strict=True):
            dist.all_gather_into_tensor(output, torch.full((count,), float(rank)))
    del manager
    for output, count in zip(outputs, (2, 4), strict=True):
        assert_equal(output, torch.arange(float(size)).repeat_interleave(count), "coalesced all_gather")
    indices = torch.tensor([[rank, size]])
    sparse = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size + 1,))
    dist.all_reduce(sparse)
    expected = torch.ones(size + 1)
    expected[size] = 2.0 * size
    assert_equal(sparse.to_dense(), expected, "sparse all_reduce")


def messages():
    rank, size = dist.get_rank(), dist.get_world_size()
    following, preceding = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 100_000):
        received = torch.empty(count)
        works = [dist.isend(torch.full((count,), float(rank)), following, tag=7), dist.irecv(received, preceding, tag=7)]
        for work in works:
            work.wait()
        assert_equal(received, torch.full((count,), float(preceding)), "a message around a ring")
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            number = torch.zeros(1)
            source = dist.recv(number)
            assert number.item() == source
            sources.add(source)
        assert sources == set(range(1, size)), sources
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    # Rank 0 would otherwise accept the next messages, too.
    dist.barrier()
    received = torch.empty(4)
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), following),
        dist.P2POp(dist.irecv, received, preceding),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert_equal(received, torch.full((4,), float(preceding)), "a batch of messages")


def futures_and_order():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((1000,), float(rank + index)) for index in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda future: future.value()[0].sum().item()) for work in works]
    synchronous = torch.ones(1)
    # Runs after all of them, though nothing has waited.
    dist.all_reduce(synchronous)
    for index, future in enumerate(futures):
        total = sum(peer + index for peer in range(size))
        assert future.wait() == 1000.0 * total
        assert_equal(tensors[index], torch.full((1000,), float(total)), "background all_reduce")
    assert_equal(synchronous, torch.full((1,), float(size)), "all_reduce after others")
    dist.barrier()
    ranks.monitored_barrier()


def groups_and_objects():
    rank, size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, size, 2)))
    odd = dist.new_group(list(range(1, size, 2)))
    mine = odd if rank % 2 else even
    number = torch.tensor([float(rank)])
    dist.all_reduce(number, group=mine)
    assert number.item() == sum(range(rank % 2, size, 2))
    dist.destroy_process_group(mine)
    if ranks.VERSION >= (2, 15):
        split()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": peer, "text": "x" * peer} for peer in range(size)]
    objects = [("from", rank)] if rank == 1 else [None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [("from", 1)]


def short_forms():
    """Methods of the group with tensors in place of lists, and a root or an operator for options."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    number = torch.tensor([rank + 1])
    group.allreduce(number, dist.ReduceOp.MAX).wait()
    assert number.item() == size
    group.allreduce([number], dist.ReduceOp.SUM).wait()
    assert number.item() == size * size
    group.broadcast(number.fill_(rank), 1).wait()
    assert number.item() == 1
    group.reduce(number.fill_(rank + 1), 0, dist.ReduceOp.MIN).wait()
    assert number.item() == 1 or rank != 0
    outputs = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    group.allgather(outputs, torch.tensor([rank])).wait()
    assert torch.cat(outputs).tolist() == list(range(size))
    group.reduce_scatter(number, outputs, dist.ReduceOp.SUM).wait()
    assert number.item() == size * rank
    group.gather(outputs if rank == 1 else [], torch.tensor([2 * rank]), 1).wait()
    assert rank != 1 or torch.cat(outputs).tolist() == list(range(0, 2 * size, 2))
    group.scatter(number, outputs if rank == 1 else [], 1).wait()
    assert number.item() == 2 * rank


def split():
    """The ranks of a group have the order of the list, and ranks that are in no list get no group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    members = [size - 1, 0]
    group = dist.split_group(split_ranks=[members])
    if rank not in members:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        return
    assert dist.get_rank(group) == members.index(rank)
    number = torch.tensor([rank])
    dist.broadcast(number, group_src=0, group=group)
    assert number.item() == size - 1
    # A group of the group.
    alone = dist.split_group(group, split_ranks=[[0], [1]])
    assert dist.get_world_size(alone) == 1
    dist.all_reduce(number, group=alone)
    assert number.item() == size - 1
    dist.destroy_process_group(alone)
    dist.destroy_process_group(group)


def everything():
    for check in (all_reduce, parameters, moves, reductions_to_some, futures_and_order):
        check()
    if dist.get_world_size() > 1:
        for check in (uneven, coalesced, messages, groups_and_objects, short_forms):
            check()


class Collectives(unittest.TestCase):
    def test_results_are_exact_for_every_type_operator_form_and_layout(self):
        for size in (1, 2, 3):
            with self.subTest(size=size):
                ranks.run(everything, size)

    def test_results_are_exact_over_tcp(self):
        ranks.run(everything, 2, environment={"COMM_TRANSPORT": "tcp"})


if __name__ == "__main__":
    unittest.main()
