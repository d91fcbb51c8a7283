"""kvlane in vLLM: Connector and LayerwiseConnector.

LayerwiseConnector loads layer by layer while the model runs.

vLLM loads them by `"kv_connector": "Connector", "kv_connector_module_path": "kvlane.vllm"`.
docs/vllm.md documents the options of vLLM and the choice between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._releases import Adapters

if TYPE_CHECKING:
    from .v0_32 import Connector, LayerwiseConnector

__all__ = ["Connector", "LayerwiseConnector"]

ADAPTERS = Adapters(__name__, "vLLM", {"0.32": "v0_32", "0.33": "v0_32"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ADAPTERS.get(name)
