"""Fixtures: SGLang's global configuration for a small model, and storage backends made by SGLang's
factory."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .pools import MODEL, PAGE

if importlib.util.find_spec("sglang") is None:
    if "sglang" in os.environ.get("KVLANE_REQUIRE", "").split(","):
        raise pytest.UsageError("KVLANE_REQUIRE names sglang, which is not there: see tools/python-env")
    collect_ignore_glob = ["test_*"]


@pytest.fixture(scope="session", autouse=True)
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the model in SGLang's global configuration."""
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    get_context().set_server_args(ServerArgs(model_path=str(folder), device="cpu", page_size=PAGE))
    return folder


@pytest.fixture
def storage(model: Path) -> Iterator[Callable[..., Any]]:
    """Returns storage(pool, extra_config), which makes storage backends as SGLang's HiCache does."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    made: list[Any] = []

    def make(pool: Any, config: dict[str, Any], mla: bool = False, **more: Any) -> Any:
        c: dict[str, Any] = {
            "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": mla,
            "enable_storage_metrics": False, "is_page_first_layout": pool.layout == "page_first", "model_name": str(model),
            "extra_config": config,
        }  # fmt: skip
        made.append(StorageBackendFactory.create_backend("dynamic", HiCacheStorageConfig(**c | more), pool))
        made[-1].register_mem_pool_host(pool)
        made[-1].on_host_pools_registered()
        return made[-1]

    yield make
    for s in made:
        s.close()
