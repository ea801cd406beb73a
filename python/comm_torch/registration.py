"""The registration of the backend, and its end."""

import atexit
import datetime

import torch
import torch.distributed as dist

from .process_group import CommProcessGroup, groups

# The backends of PyTorch itself.
_BUILT_IN = {name.upper() for name in dist.Backend.backend_list}


class _Creator:
    """Creates the groups of a backend with this name."""

    def __init__(self, name):
        self.name = name

    def __call__(self, options, _backend_options):
        timeout = options.timeout or datetime.timedelta(minutes=30)
        # PyTorch has had this option since 2.15.
        enable_reconfigure = getattr(options, "enable_reconfigure", False)
        place = options.group_rank, options.group_size
        # The world has no list of ranks.
        members = options.global_ranks_in_group
        subgroup = (options.group_id, members) if members else None
        return CommProcessGroup(options.store, *place, timeout, self.name, enable_reconfigure, subgroup)


def register(name="comm"):
    """Registers the backend, if it has not been.

    Importing `comm_torch` does this; so does PyTorch from 2.15 on. From then on, it can also get the
    name of another backend, such as "gloo", whose place it takes in programs that cannot be changed.
    """
    if name.upper() in _BUILT_IN and not hasattr(dist.Backend, "_ensure_backend_registered"):
        version = torch.__version__
        raise RuntimeError(f"PyTorch {version} does not let others be {name}: ask for comm, or use PyTorch 2.15 or later")
    # comm records its calls itself, and PyTorch's recorder needs a backend written in C++.
    getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(name)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None:
        dist.Backend.register_backend(name, _Creator(name), extended_api=True, devices=["cpu"])
    elif not isinstance(plugin.creator_fn, _Creator):
        dist.Backend._plugins[name.upper()] = dist.Backend._BackendPlugin(_Creator(name), True)


@atexit.register
def _leave():
    """Leaves all groups before the interpreter ends, so that no thread needs it afterwards."""
    for group in list(groups):
        if group._group.is_pending():
            group._group.abort("the process ends while operations are pending")
        group.shutdown()
