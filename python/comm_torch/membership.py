"""Groups whose members change: torch.distributed's hooks for fault tolerance."""

import os
import socket
import uuid

from .errors import CommError


class NotConnected:
    """Stands for the connection to the other ranks while there is none."""

    def is_pending(self):
        return False

    def failure(self):
        return None

    def abort(self, reason):
        pass

    def call_abort_hooks(self):
        pass

    def shutdown(self):
        pass

    def __getattr__(self, name):
        raise CommError("the process group has no members: call reconfigure() first", "not_connected")


def new_handle():
    """Returns a name for a process group of this process, which no other has."""
    return f"comm:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"


def place(own, handles):
    """Returns the rank of a handle and the number of ranks. A list has the order of the ranks; a set
    is sorted."""
    members = handles if isinstance(handles, list) else sorted(handles)
    if len(set(members)) != len(members):
        raise ValueError("two members of the group have the same handle")
    if own not in members:
        raise ValueError(f"the handle of this process, {own}, is not among those of the members")
    return members.index(own), len(members)
