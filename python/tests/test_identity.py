"""Tests the identity of stored KV for Hugging Face configurations and weights: any difference that
affects KV is a miss."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import kvlane
from kvlane import identity

# The content of a config.json.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "_name_or_path": "org/model", "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 128, "rope_theta": 10000.0, "rope_scaling": None, "sliding_window": None, "transformers_version": "5.0",
    "use_cache": True,
}  # fmt: skip
GIVEN: dict[str, Any] = {"block_tokens": 16, "commit": "c0ffee"}


def store_of(config: dict[str, Any], **more: Any) -> kvlane.Store:
    part = identity.from_hf_config(config, **{**GIVEN, **more})
    return kvlane.Store({**part, "device": {"driver": "host"}, "store": {"cache_bytes": 1 << 20}})


def keys_of(config: dict[str, Any], **more: Any) -> kvlane.Keys:
    with store_of(config, **more) as store:
        return store.token_keys(range(32), 16)


@pytest.mark.parametrize("change", [
    {"_name_or_path": "org/other"}, {"model_type": "mistral"}, {"dtype": "float16"}, {"rope_theta": 500000.0},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"partial_rotary_factor": 0.5},
    {"sliding_window": 4096}, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    {"quantization_config": {"quant_method": "gptq", "bits": 4}}, {"quantization_config": {"quant_method": "gptq", "bits": 8}},
    {"quantization_config": {"dtype": "int8"}},
    {"num_hidden_layers": 4}, {"num_key_value_heads": 4}, {"head_dim": 32}, {"num_attention_heads": 8}, {"hidden_act": "gelu"},
    {"rms_norm_eps": 1e-5}, {"attention_bias": True}, {"query_pre_attn_scalar": 256}, {"vocab_size": 129},
    {"auto_map": {"AutoModelForCausalLM": "modeling_own.Model"}},
])  # fmt: skip
def test_any_difference_of_configurations_is_a_miss(change: dict[str, Any]) -> None:
    assert not set(keys_of(CONFIG)) & set(keys_of({**CONFIG, **change}))


@pytest.mark.parametrize("more", [
    {"commit": "decade"}, {"weights": "fingerprint"}, {"dtype": "fp8_e4m3"}, {"layout": "NHD"}, {"attention": "eager"},
    {"block_tokens": 8}, {"tp_size": 2, "tp_rank": 0}, {"tp_size": 2, "tp_rank": 1}, {"name": "other"},
])  # fmt: skip
def test_any_difference_of_what_is_given_is_a_miss(more: dict[str, Any]) -> None:
    assert not set(keys_of(CONFIG)) & set(keys_of(CONFIG, **more))


def test_each_difference_is_another_one() -> None:
    scalings = [{"rope_type": "linear", "factor": f} for f in (2.0, 4.0)] + [{"rope_type": "yarn", "factor": 2.0}]
    revisions = {identity.revision({**CONFIG, "rope_scaling": s}, commit="c") for s in [None, *scalings]}
    assert len(revisions) == 4


@pytest.mark.parametrize("change", [
    {"transformers_version": "6.0"}, {"use_cache": False}, {"architectures": None}, {"id2label": {"0": "a"}}, {"pad_token_id": 3},
    {"torch_dtype": "bfloat16"},
])  # fmt: skip
def test_what_kv_does_not_depend_on_is_no_difference(change: dict[str, Any]) -> None:
    assert keys_of({**CONFIG, **change}) == keys_of(CONFIG)


def test_the_order_of_keys_and_the_process_do_not_matter() -> None:
    turned = dict(reversed(list(copy.deepcopy(CONFIG).items())))
    assert keys_of(turned) == keys_of(CONFIG)
    text = json.dumps(CONFIG)
    code = f"import json; from kvlane import identity; print(identity.revision(json.loads({text!r}), commit='c'))"
    for seed in ("0", "7"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=600)
        assert out.strip() == identity.revision(CONFIG, commit="c")


def test_replicated_kv_is_found_by_each_rank() -> None:
    one_head = {**CONFIG, "num_key_value_heads": 1}
    assert keys_of(one_head, tp_size=2, tp_rank=0) == keys_of(one_head, tp_size=2, tp_rank=1)
    mla = {**CONFIG, "kv_lora_rank": 32, "qk_rope_head_dim": 8}
    assert keys_of(mla, tp_size=4, tp_rank=0) == keys_of(mla, tp_size=4, tp_rank=3)
    assert identity.from_hf_config(mla, **GIVEN)["model"]["head_size"] == 40


def test_weights_have_to_be_known() -> None:
    with pytest.raises(kvlane.Invalid, match="fingerprint"):
        identity.from_hf_config(CONFIG, block_tokens=16)
    with pytest.raises(kvlane.Invalid, match="numbers of layers"):
        identity.from_hf_config({"model_type": "odd"}, **GIVEN)


def folder_of_weights(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True)
    for name in ("model-1.safetensors", "model-2.safetensors"):
        with (folder / name).open("wb") as f:
            f.truncate(64 << 20)
    (folder / "config.json").write_text("{}")
    return folder


def edit(file: pathlib.Path) -> None:
    """Writes a few bytes at a place that is not sampled."""
    time.sleep(0.05)  # file systems have coarse clocks
    with file.open("r+b") as f:
        f.seek((37 << 20) + 12345)
        f.write(b"other")


def snapshot_of_weights(cache: pathlib.Path, blobs: list[str]) -> pathlib.Path:
    """Lays out weights as huggingface_hub keeps a snapshot: symbolic links to files that are named
    by their hashes."""
    files = folder_of_weights(cache / "blobs")
    snapshot = cache / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for name, blob in zip(("model-1.safetensors", "model-2.safetensors"), blobs, strict=True):
        (files / name).rename(files / blob)
        (snapshot / name).symlink_to(os.path.join("..", "..", "blobs", blob))
    return snapshot


def test_a_change_between_the_samples_of_a_file_is_another_fingerprint(tmp_path: pathlib.Path) -> None:
    folder = folder_of_weights(tmp_path / "model")
    first = identity.folder_fingerprint(folder)
    assert first == identity.folder_fingerprint(folder)
    (folder / "config.json").write_text("{ }")
    assert first == identity.folder_fingerprint(folder)
    edit(folder / "model-2.safetensors")
    second = identity.folder_fingerprint(folder)
    assert second != first
    moved = folder.rename(tmp_path / "elsewhere")
    assert identity.folder_fingerprint(moved) == second
    assert identity.folder_fingerprint(shutil.copytree(moved, tmp_path / "copy")) == second  # copytree keeps file times
    (moved / "model-1.safetensors").unlink()
    assert identity.folder_fingerprint(moved) != second
    (moved / "model-2.safetensors").unlink()
    assert identity.folder_fingerprint(moved) is None


def test_files_that_are_named_by_their_hashes_have_one_fingerprint_wherever_they_were_fetched(tmp_path: pathlib.Path) -> None:
    names = ["a1" * 32, "b2" * 32]
    snapshot = snapshot_of_weights(tmp_path / "one", names)
    first = identity.folder_fingerprint(snapshot)
    assert identity.folder_fingerprint(snapshot_of_weights(tmp_path / "two", names)) == first
    assert identity.folder_fingerprint(snapshot_of_weights(tmp_path / "three", names[::-1])) != first
    edit(snapshot / "model-1.safetensors")  # the write goes to the link's target
    assert identity.folder_fingerprint(snapshot) != first


@pytest.mark.torch
@pytest.mark.parametrize("change", [
    lambda m: m.model.layers[1].mlp.up_proj.weight.mul_(1.01),
    lambda m: m.model.embed_tokens.weight[5].add_(1),
    lambda m: m.model.norm.weight[7].add_(0.01),
])  # fmt: skip
def test_fingerprints(change: Callable[[Any], Any]) -> None:
    import tiny
    import torch

    first = tiny.model("llama")
    assert identity.fingerprint(first) == identity.fingerprint(tiny.model("llama"))
    assert (
        len({identity.fingerprint(first), identity.fingerprint(first, None), identity.fingerprint(tiny.model("llama", seed=1))})
        >= 2
    )
    other = tiny.model("llama")
    with torch.no_grad():
        change(other)
    assert identity.fingerprint(other, None) != identity.fingerprint(first, None)
    # For most tensors here, 4,096 sampled values are all values.
    assert identity.fingerprint(other) != identity.fingerprint(first)


OWN = """
from transformers import LlamaForCausalLM
from .parts import scale

class Own(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)
"""


@pytest.mark.torch
def test_what_computes_kv_is_part_of_its_identity(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiny
    import torch
    import transformers
    from transformers import dynamic_module_utils

    from kvlane.transformers import KVLaneCache

    def revision(model: Any) -> str:
        with KVLaneCache(model, {"cache_bytes": 1 << 20}, weights="the same") as cache:
            return str(cache.config["revision"])

    def remote(parts: str, own: str = OWN) -> str:
        """Returns the revision of a model whose code is in its folder."""
        (tmp_path / "model" / "modeling_own.py").write_text(own)
        (tmp_path / "model" / "parts.py").write_text(parts)
        return revision(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True).eval())

    model = tiny.model("llama")
    first = revision(model)
    assert revision(tiny.model("llama")) == first
    for module, same, others in (
        ("transformers", transformers.__version__ + ".post1", ["5.99.0", "5.99.1"]),
        ("torch", ".".join(torch.__version__.split(".")[:2]) + ".99+cpu", ["2.99.0", "3.0.0"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.__version__", same)
            assert revision(model) == first
            for version in others:
                patch.setattr(f"{module}.__version__", version)
                assert revision(model) != first
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    model.config.auto_map = {"AutoModelForCausalLM": "modeling_own.Own"}
    model.save_pretrained(tmp_path / "model")
    first = remote("scale = 1")
    assert remote("scale = 1") == first
    assert remote("scale = 2") != first
    assert remote("scale = 1", OWN + "# another") != first
