"""The exception of calls that fail."""

import torch.distributed as dist

# The class of errors of backends, which older versions of PyTorch do not have.
_Base = getattr(dist, "DistBackendError", RuntimeError)


class CommError(_Base):
    """The error of a call.

    `kind` is "timeout", "peer_lost", "desync", "aborted", "invalid", "handshake", "io" or another
    word; `ranks` are the ranks of the group that the error names, such as those that did not
    arrive.
    """

    def __init__(self, message, kind="internal", ranks=()):
        super().__init__(message)
        self.kind = kind
        self.ranks = list(ranks)
