"""kvlane in SGLang: Storage and Linker.

Storage is a storage backend of HiCache. Linker moves pages between the device's pools and the
store. SGLang loads them by their names and the module path kvlane.sglang. docs/sglang.md documents
the options of SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._releases import Adapters

if TYPE_CHECKING:
    from .v0_5_23 import Linker, Storage

__all__ = ["Linker", "Storage"]

ADAPTERS = Adapters(__name__, "SGLang", {"0.5.23": "v0_5_23"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ADAPTERS.get(name)
