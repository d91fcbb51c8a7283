"""kvlane: a store of KV cache within the process of an inference engine.

Store opens the store and PagedCache registers an engine's tensors. A request uses Store.lease,
Store.load and Store.dump. Stream copies other data between Regions. torch_allocator allocates
tensors that other processes can import. kvlane.transformers has a cache for generate().

The library is loaded on the first call. Errors are exceptions derived from kvlane.Error.
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
from .task import Dump, LeftOut, Load, Result, Task

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
    "LeftOut",
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
