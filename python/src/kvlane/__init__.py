"""kvlane: a store of KV cache within the process of an inference engine.

Store opens it, PagedCache names an engine's tensors, and a request is Store.lease, Store.load and Store.dump.
kvlane.transformers has a cache for generate(). The library is loaded at the first call, and errors are exceptions of one
hierarchy, kvlane.Error.
"""

from ._version import __version__
from .errors import (
    Broken,
    Busy,
    Canceled,
    Closed,
    Corrupt,
    Error,
    Exists,
    Expired,
    Failed,
    Forked,
    Invalid,
    Mismatch,
    NoMemory,
    NoSpace,
    NotFound,
    NotSupported,
    ReadOnly,
    Status,
    Timeout,
)
from .keys import Keys, hash_tokens
from .paged import Addresses, Group, PagedCache
from .store import Lease, Store
from .task import Dump, Load, Result, Task

__all__ = [
    "Addresses",
    "Broken",
    "Busy",
    "Canceled",
    "Closed",
    "Corrupt",
    "Dump",
    "Error",
    "Exists",
    "Expired",
    "Failed",
    "Forked",
    "Group",
    "Invalid",
    "Keys",
    "Lease",
    "Load",
    "Mismatch",
    "NoMemory",
    "NoSpace",
    "NotFound",
    "NotSupported",
    "PagedCache",
    "ReadOnly",
    "Result",
    "Status",
    "Store",
    "Task",
    "Timeout",
    "__version__",
    "hash_tokens",
]
