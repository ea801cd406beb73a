"""Tensors as memory."""

import ctypes
import datetime
import math

import torch
import torch.distributed as dist

# The codes of element types in comm.
_I8, _U8, _I16, _U16, _I32, _U32, _I64, _U64, _F16, _BF16, _F32, _F64 = range(1, 13)

# The code of a type, and the number of elements of that code in one element of the type.
_NUMBERS = {
    torch.int8: (_I8, 1),
    torch.uint8: (_U8, 1),
    torch.int16: (_I16, 1),
    torch.int32: (_I32, 1),
    torch.int64: (_I64, 1),
    torch.float16: (_F16, 1),
    torch.bfloat16: (_BF16, 1),
    torch.float32: (_F32, 1),
    torch.float64: (_F64, 1),
    torch.complex64: (_F32, 2),
    torch.complex128: (_F64, 2),
}
for _name, _code in [("uint16", _U16), ("uint32", _U32), ("uint64", _U64)]:
    if hasattr(torch, _name):
        _NUMBERS[getattr(torch, _name)] = (_code, 1)

# A bool is a byte that is 0 or 1. As for all operators in PyTorch, the result is a bool again.
_OPERATORS_OF_BOOL = {
    "SUM": "BOR",
    "MAX": "BOR",
    "BOR": "BOR",
    "PRODUCT": "BAND",
    "MIN": "BAND",
    "BAND": "BAND",
    "BXOR": "BXOR",
}

_OPERATORS = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}


def operator_name(op):
    """Returns the name of a `torch.distributed.ReduceOp`."""
    for name, operator in _OPERATORS.items():
        if op == operator:
            return name
    raise ValueError(f"comm has no operator {op}")


# The results of `to_reduce`, by type and name of the operator.
_reductions = {}


def to_reduce(dtype, op):
    """Returns the code of a type, its number of elements, and the operator: its name, or the factor
    of PREMUL_SUM."""
    name = operator_name(op)
    found = _reductions.get((dtype, name))
    if found is None:
        found = _reductions[dtype, name] = _reduction(dtype, name)
    if name != "PREMUL_SUM":
        return found
    code, width, _ = found
    # The attribute `factor` is younger than the operator. A factor may be a tensor of one element.
    _, factor = op.__getstate__()
    return code, width, float(factor)


def _reduction(dtype, name):
    if dtype == torch.bool:
        if name not in _OPERATORS_OF_BOOL:
            raise TypeError(f"{name} of bool tensors is not defined")
        return _U8, 1, _OPERATORS_OF_BOOL[name]
    if dtype not in _NUMBERS:
        raise TypeError(f"tensors of {dtype} can be moved, but not reduced")
    code, width = _NUMBERS[dtype]
    is_defined = width == 1 or name in ("SUM", "AVG", "PREMUL_SUM")
    if name == "PREMUL_SUM" and not (dtype.is_floating_point or dtype.is_complex):
        is_defined = False
    if not is_defined:
        raise TypeError(f"{name} of {dtype} tensors is not defined")
    return code, width, name


def to_move(dtype):
    """Returns the code of a type that need not be reduced, and its number of elements."""
    if dtype in _NUMBERS:
        return _NUMBERS[dtype]
    return _U8, dtype.itemsize


class DeviceTensor(RuntimeError):
    """The tensor is not in host memory."""

    def __init__(self, device):
        super().__init__(f"the backend comm moves tensors in host memory, not on {device}")
        self.device = device


def check_host(tensor):
    if not tensor.is_cpu:
        raise DeviceTensor(tensor.device)


def check(tensor):
    check_host(tensor)
    if tensor.layout != torch.strided:
        raise RuntimeError(f"the backend comm moves dense tensors, not a {tensor.layout} tensor")


def options(given, kind, *others):
    """Returns the options of a call, or makes them of the root, the operator and the timeout of its
    shorter form."""
    if type(given) is kind:
        if any(value is not None for value in others):
            raise TypeError(f"{kind.__name__} and a root, an operator or a timeout in one call")
        return given
    made = kind()
    for value in (given, *others):
        if isinstance(value, int):
            made.rootRank = value
        elif isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            made.reduceOp = value
        elif isinstance(value, datetime.timedelta):
            made.timeout = value
        elif value is not None:
            raise TypeError(f"{kind.__name__} is expected, not {value!r}")
    return made


def single(tensors):
    """Returns the tensor of a call, for which its longer form has a list of one."""
    return tensors if type(tensors) is not list and isinstance(tensors, torch.Tensor) else only(tensors)


def only(tensors):
    """Returns the tensor, or the list of tensors, of a list that may have no other."""
    if len(tensors) != 1:
        raise ValueError(f"a call has one tensor per rank, not {len(tensors)}")
    return tensors[0]


def is_plain(tensor):
    """Returns whether the memory of a tensor is its elements in the order of their indices."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def plain(tensor):
    """Returns the tensor itself if its memory is its elements in order, otherwise a copy."""
    if tensor.is_cpu and is_plain(tensor):
        return tensor
    check(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def span(tensor, width):
    """Returns the address of a plain tensor, and its number of elements in comm."""
    return tensor.data_ptr(), tensor.numel() * width


def over(memory, dtype):
    """Returns a tensor over memory, which lives as long as the tensor and its views."""
    if memory.bytes == 0:
        return torch.empty(0, dtype=dtype)
    array = (ctypes.c_uint8 * memory.bytes).from_address(memory.address)
    # The tensor keeps the array alive, and the array keeps the memory.
    array.memory = memory
    return torch.frombuffer(array, dtype=dtype)


def joined(tensors):
    """Returns one plain tensor over the memory of these, if they lie behind each other in it."""
    first = tensors[0]
    if not is_plain(first) or first.numel() == 0:
        return None
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if (
            tensor.data_ptr() != end
            or tensor.dtype != first.dtype
            or not is_plain(tensor)
            or tensor.untyped_storage().data_ptr() != storage
        ):
            return None
        end += tensor.numel() * tensor.element_size()
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,), first.storage_offset())


def concatenated(tensors):
    """Returns the elements of several tensors in one, without a copy if possible."""
    for tensor in tensors:
        check(tensor)
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise TypeError("all tensors of a call must have the same type")
    flat = joined(tensors)
    return torch.cat([plain(tensor).reshape(-1) for tensor in tensors]) if flat is None else flat


def split_to(flat, tensors):
    """Copies the elements of one tensor to several."""
    start = 0
    for tensor in tensors:
        end = start + tensor.numel()
        tensor.detach().copy_(flat[start:end].view(tensor.shape))
        start = end


def row_elements(tensor):
    """Returns the number of elements of each row of a tensor."""
    return math.prod(tensor.shape[1:])


def check_same_type(output, input):
    if output.dtype != input.dtype:
        raise TypeError(f"tensors of {output.dtype} and {input.dtype} in one call")


def copy_back(tensor, memory):
    """Returns the function that copies a result from a copy of a tensor, or None without a copy."""
    return None if memory is tensor else lambda: tensor.detach().copy_(memory)


def counts(tensors):
    """Returns the lengths of tensors, or None if they are equal."""
    lengths = [tensor.numel() for tensor in tensors]
    return lengths if len(set(lengths)) > 1 else None


def gathered(tensors):
    """Returns one tensor with the elements of several, and the function that copies it back."""
    flat = concatenated(tensors)
    is_copy = flat.data_ptr() != tensors[0].data_ptr()
    return flat, (lambda: split_to(flat, tensors)) if is_copy else None


def receiving(tensors):
    """Returns one tensor that receives the elements of several, and the function that copies it."""
    for tensor in tensors:
        check(tensor)
    flat = joined(tensors)
    if flat is not None:
        return flat, None
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)
    return flat, lambda: split_to(flat, tensors)
