"""One rank of PyTorch over NCCL, which the program gpu-check asks for times.

nccl.py STORE RANK RANKS DEVICE. After connecting, it prints "ready" and the path of the loaded NCCL. Each line of its
input is a request: a collective, the bytes of its larger buffer, and a number of consecutive calls, as in
"all_gather 1048576 20". The answer is "measured" and the seconds per call, or "failed" and the reason.
"""

import ctypes
import sys
import time

import torch
import torch.distributed as dist

BEFORE = 3


def loaded_nccl():
    """Returns the path of the NCCL library that this process calls.

    PyTorch may load its own NCCL beside a preloaded one, but calls the one that the linker finds first.
    """
    try:
        function = ctypes.cast(ctypes.CDLL(None).ncclAllReduce, ctypes.c_void_p).value
    except AttributeError:
        function = None  # none is preloaded
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, *_, path = line.split(None, 5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            if "libnccl" in path and (function is None or start <= function < end):
                return path.strip()
    return "no file: it is built into PyTorch"


def say(line):
    print(line, flush=True)


def calls(name, bytes_, ranks):
    """Returns a function that makes one call, and its buffers."""
    count = bytes_ // 4 // ranks
    all_ = torch.zeros(count * ranks, dtype=torch.float32, device="cuda")
    block = torch.zeros(count, dtype=torch.float32, device="cuda")
    return {
        "all_reduce": lambda: dist.all_reduce(all_),
        "broadcast": lambda: dist.broadcast(all_, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(all_, block),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(block, all_),
    }[name]


def measure(name, bytes_, count, ranks):
    call = calls(name, bytes_, ranks)
    for _ in range(BEFORE):
        call()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def main():
    store, rank, ranks, device = sys.argv[1], *map(int, sys.argv[2:5])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    # The first call loads NCCL and connects it.
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    say("ready " + loaded_nccl())
    for line in sys.stdin:
        name, bytes_, count = line.split()
        try:
            say(f"measured {measure(name, int(bytes_), int(count), ranks):e}")
        except Exception as error:  # any error is reported to gpu-check
            say("failed " + " ".join(str(error).split()))
    dist.destroy_process_group()


main()
