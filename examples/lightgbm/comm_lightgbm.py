"""LightGBM's distributed training over comm.

    import comm_lightgbm
    import lightgbm

    with comm_lightgbm.connect() as network:
        data = lightgbm.Dataset(rows_of(network.rank), labels_of(network.rank))
        model = lightgbm.train({"objective": "binary", **network.parameters}, data)

Start the processes with `commctl run -n 4 -- python train.py`, torchrun, mpiexec or srun. Every
process passes its own rows, and all get the same model. There is no list of machines and no port.

A collective that fails, for example because another process has died, ends the process by SIGABRT,
after a line on standard error that names the ranks at fault: LightGBM's functions cannot return an
error.

The library `libcomm_lightgbm.so` is expected beside this file, or at the path in the variable
COMM_LIGHTGBM_LIBRARY. `cargo build --release -p lightgbm` builds it.
"""

import ctypes
import os
import pathlib

from lightgbm.basic import _LIB

# The longest message of an error, in bytes.
_CAPACITY = 4096


class CommError(RuntimeError):
    """The processes cannot connect, or not all of them left the network."""


class Network:
    """The network of LightGBM on the thread that created it. `connect` returns one."""

    def __init__(self, library):
        self._library = library
        rank, size = ctypes.c_int(), ctypes.c_int()
        functions = (
            ctypes.cast(function, ctypes.c_void_p)
            for function in (_LIB.LGBM_NetworkInitWithFunctions, _LIB.LGBM_NetworkFree)
        )
        self._call("comm_lightgbm_connect", *functions, ctypes.byref(rank), ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    @property
    def parameters(self):
        """The parameters of LightGBM for training that is divided by rows."""
        return {"num_machines": self.size, "tree_learner": "data"}

    def close(self):
        """Ends the network, and returns once all ranks have done so."""
        self._call("comm_lightgbm_close")

    def abort(self, reason):
        """Ends the network, and all calls of the other ranks, with this reason."""
        self._library.comm_lightgbm_abort(str(reason).encode())

    def __enter__(self):
        return self

    def __exit__(self, _kind, error, _traceback):
        if error is None:
            self.close()
        else:
            self.abort(error)

    def _call(self, name, *arguments):
        message = ctypes.create_string_buffer(_CAPACITY)
        if getattr(self._library, name)(*arguments, message, ctypes.c_size_t(_CAPACITY)) != 0:
            raise CommError(message.value.decode(errors="replace"))


def connect():
    """Connects this process to the others, as its environment says, and returns the network."""
    beside = pathlib.Path(__file__).with_name("libcomm_lightgbm.so")
    return Network(ctypes.CDLL(os.environ.get("COMM_LIGHTGBM_LIBRARY", beside)))
