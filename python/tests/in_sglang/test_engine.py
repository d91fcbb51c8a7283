"""Tests which of SGLang's arguments and model files change the identity of stored KV."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_lora, get_model, get_spec

from kvlane import errors
from kvlane.sglang import config
from kvlane.sglang.engine import engine

from .pools import MODEL

ROPE = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
BAGS: dict[str, Any] = {
    **dict.fromkeys(("dtype", "quantization", "kv_cache_dtype", "json_model_override_args", "context_length"), get_model),
    **dict.fromkeys(("load_format", "model_path", "revision", "quantization_param_path"), get_model),
    **dict.fromkeys(("speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision"), get_spec),
    **dict.fromkeys(("enable_lora", "lora_paths"), get_lora),
}


def identity(own: dict[str, Any] | None = None, **arguments: Any) -> str:
    """Returns the name of the directory of pages for an engine that differs in one argument."""
    if arguments:
        name, value = arguments.popitem()
        with BAGS[name]().override(**{name: value}):
            return identity(own, **arguments)
    given = {"store": {"cache_bytes": 1 << 20, "dirs": ["/kv"]}, **(own or {})}
    store = config.store_config(given, engine(), config.Rank(), {}, {"driver": "host"}, groups=[], layers=[])
    return str(store["store"]["dirs"][0])


def changed(folder: Path, to: Path, **more: Any) -> str:
    """Copies a model's folder and changes its configuration."""
    shutil.copytree(folder, to)
    (to / "config.json").write_text(json.dumps({**MODEL, **more}))
    return str(to)


def test_any_difference_is_a_miss(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "weights"
    shutil.copytree(model, other)
    (other / "model.safetensors").write_bytes(bytes(reversed(range(256))) * 64)
    draft: Any = {"speculative_algorithm": "EAGLE"}
    found = [
        identity(),
        identity(dtype="float16"),
        identity(quantization="fp8"),
        identity(quantization="awq"),
        identity(kv_cache_dtype="fp8_e5m2"),
        identity(kv_cache_dtype="fp8_e4m3", quantization_param_path="a"),
        identity(kv_cache_dtype="fp8_e4m3", quantization_param_path="b"),
        identity(json_model_override_args=json.dumps(ROPE)),
        identity(json_model_override_args=json.dumps({"rope_theta": 500.0})),
        identity(context_length=128),
        identity(revision="main"),
        identity(revision="v2"),
        identity(load_format="dummy"),
        identity(**draft),
        identity(**draft, speculative_draft_model_path="draft"),
        identity(**draft, speculative_draft_model_path="draft", speculative_draft_model_revision="v2"),
        identity(model_path=changed(model, tmp_path / "same")),
        identity(model_path=changed(model, tmp_path / "rope", **ROPE)),
        identity(model_path=changed(model, tmp_path / "theta", rope_theta=500.0)),
        identity(model_path=str(other)),
        identity({"weights": "1"}),
        identity({"weights": "2"}),
    ]
    assert len(set(found)) == len(found)
    assert identity() == found[0]


def test_adapters_have_to_be_known() -> None:
    loras: list[Any] = [{"enable_lora": True}, {"lora_paths": ["a=/adapters/a"]}]
    for lora in loras:
        with pytest.raises(errors.Invalid, match="LoRA"):
            identity(**lora)
        assert identity({"weights": "1"}, **lora) != identity({"weights": "2"}, **lora)
    pages = [get_storage_hash_str(RadixKey(array("q", range(8)), adapter), None, 4) for adapter in (None, "a", "b")]
    assert len({page for each in pages for page in each}) == 6, "an adapter's pages are its own"


@pytest.mark.parametrize("name", list(BAGS))
def test_an_argument_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from kvlane.sglang import engine as module

    class Bag:
        """SGLang's arguments with one field removed, as in a version without it."""

        def __init__(self, bag: Any) -> None:
            self.bag = bag

        def __getattr__(self, field: str) -> Any:
            if field == name:
                raise AttributeError(field)
            return getattr(self.bag, field)

    for getter in ("get_model", "get_spec", "get_lora"):
        bag = Bag(getattr(module, getter)())
        monkeypatch.setattr(module, getter, lambda bag=bag: bag)
    with pytest.raises(errors.NotSupported, match=rf"has no argument {name}\b"):
        engine()
