"""The backend "comm" of torch.distributed: collectives of CPU tensors over comm.

    import torch.distributed as dist
    import comm_torch

    dist.init_process_group("comm")

Processes of one host communicate through shared memory, others over TCP. Nothing else changes: the
ranks find each other through the store of torch.distributed, and all its functions, DDP and FSDP
work as with gloo. The variables COMM_TRANSPORT, COMM_SECRET, COMM_SOCKET_IFNAME and the others of
comm apply, except those that a launcher sets.

A call that fails raises `CommError`, which names the ranks at fault.
"""

from .errors import CommError
from .process_group import CommProcessGroup
from .registration import register

__all__ = ["CommError", "CommProcessGroup", "register"]

register()
