"""kvlane in SGLang: Storage, a storage backend of HiCache, and Linker, which goes from the device's pools to the store.

SGLang loads them by their names and the module path kvlane.sglang. Its interfaces change from release to release, so each
release that is supported has a module of its own, chosen here. docs/sglang.md says how to start SGLang with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .. import errors

if TYPE_CHECKING:
    from .v0_5_23 import Linker, Storage

__all__ = ["Linker", "Storage"]

# SGLang's releases, and the modules for them.
_RELEASES = {"0.5.23": "v0_5_23"}


def release(version: str) -> str:
    """The module for a version of SGLang. NotSupported where there is none."""
    name = _RELEASES.get(version.split("+", maxsplit=1)[0].split(".post", maxsplit=1)[0])
    if name is None:
        raise errors.NotSupported(f"SGLang {version}: kvlane.sglang has adapters for the releases {', '.join(sorted(_RELEASES))}")
    return f"{__name__}.{name}"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sglang

    return getattr(importlib.import_module(release(sglang.__version__)), name)
