"""kvlane: a store of KV cache within the process of an inference engine.

Store opens it, PagedCache names an engine's tensors, and a request is Store.lease, Store.load and Store.dump. Stream copies
what is no block between Regions, and torch_allocator makes tensors' memory that other processes can import.
kvlane.transformers has a cache for generate(). The library is loaded at the first call, and errors are exceptions of one
hierarchy, kvlane.Error.
"""

from ._version import __version__
from .allocator import allocator_stats, torch_allocator
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
from .manager import Block, Job, Manager
from .paged import Addresses, Group, PagedCache
from .store import Lease, Store
from .stream import Region, Stream
from .task import Dump, Load, Result, Task

__all__ = [
    "Addresses",
    "Block",
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
    "Job",
    "Keys",
    "Lease",
    "Load",
    "Manager",
    "Mismatch",
    "NoMemory",
    "NoSpace",
    "NotFound",
    "NotSupported",
    "PagedCache",
    "ReadOnly",
    "Region",
    "Result",
    "Status",
    "Store",
    "Stream",
    "Task",
    "Timeout",
    "__version__",
    "allocator_stats",
    "hash_tokens",
    "torch_allocator",
]
