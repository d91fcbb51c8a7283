"""kvlane in vLLM: Connector, which vLLM loads by `"kv_connector": "Connector", "kv_connector_module_path": "kvlane.vllm"`.

vLLM's interfaces change from release to release, so each release that is supported has a module of its own, chosen here.
docs/vllm.md says how to start vLLM with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .. import errors

if TYPE_CHECKING:
    from .v0_32 import Connector

__all__ = ["Connector"]

# vLLM's releases, and the modules for them.
_RELEASES = {"0.32": "v0_32"}


def release(version: str) -> str:
    """The module for a version of vLLM. NotSupported where there is none."""
    name = _RELEASES.get(".".join(version.split(".")[:2]))
    if name is None:
        raise errors.NotSupported(f"vLLM {version}: kvlane.vllm has adapters for the releases {', '.join(sorted(_RELEASES))}")
    return f"{__name__}.{name}"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    return getattr(importlib.import_module(release(vllm.__version__)), name)
