"""Tensors on GPUs, whose collectives PyTorch's own NCCL backend runs."""

import functools

import torch
import torch.distributed as dist

from . import tensors as t

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@functools.cache
def is_available():
    """Returns whether a group can have tensors on GPUs."""
    return dist.is_nccl_available() and torch.cuda.is_available()


def or_on_device(method):
    """Lets the group for GPUs run a call whose tensors are there."""
    name = method.__name__

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except t.DeviceTensor as error:
            group = self._device_group(error.device)
            if group is None:
                raise
        return getattr(group, name)(*args, **kwargs)

    return call


def nccl_group(store, rank, size, timeout):
    """Returns a process group for GPUs. NCCL connects its ranks in the first call."""
    store = dist.PrefixStore("cuda", store)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(store, rank, size, options)
    backend._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    group._register_backend(CUDA, dist.ProcessGroup.BackendType.NCCL, backend)
    return group
