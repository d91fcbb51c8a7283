"""Tests the identity of stored KV: a change of any setting that affects KV makes stored blocks a
miss."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvlane import errors, vllm
from kvlane.vllm import config

STORE = {"store": {"cache_bytes": 1 << 20, "dirs": ["/kv"]}}
LORA = {"enable_lora": True}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 2048}}


def test_a_release_without_adapter_is_reported() -> None:
    for version in ("0.32.1+cpu", "0.33.0"):
        assert vllm.ADAPTERS.module(version) == "kvlane.vllm.v0_32"
    with pytest.raises(errors.NotSupported, match=r"vLLM 0\.99\.0: .* 0\.32, 0\.33$"):
        vllm.ADAPTERS.module("0.99.0")


def test_identity(identities: Any, model: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model("llama"), other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    copy = tmp_path / "copy"
    shutil.copytree(model("llama"), copy)
    cases: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
        "plain": (STORE, {}, {}),
        "again": (STORE, {"max_num_seqs": 3, "seed": 7}, {}),
        "rope": (STORE, {"hf_overrides": ROPE}, {}),
        "yarn": (STORE, {"hf_overrides": YARN}, {}),
        "weights": (STORE, {"model": str(other)}, {}),
        "named": (STORE | {"weights": "2"}, {}, {}),
        "adapters": (STORE | {"weights": "3"}, LORA, {}),
        "the same adapters": (STORE | {"weights": "3"}, LORA, {}),
        "dtype": (STORE, {"dtype": "bfloat16"}, {}),
        "cache dtype": (STORE, {"kv_cache_dtype": "fp8"}, {}),
        "hash": (STORE, {"prefix_caching_hash_algo": "sha256_cbor"}, {}),
        "seed": (STORE, {}, {"PYTHONHASHSEED": "1"}),
        "tenant": (STORE | {"tenant": "a"}, {}, {}),
        "dummy": (STORE, {"load_format": "dummy"}, {}),
        "two ranks": (STORE, {"tensor_parallel_size": 2}, {}),
        "a patch release": (STORE, {}, {"VERSION": "0.32.1"}),
        "backend": (STORE, {}, {"BACKEND": "FLASH_ATTN"}),
        "platform": (STORE, {}, {"PLATFORM": "rocm"}),
        "machine": (STORE, {}, {"MACHINE": "aarch64"}),
        # vLLM's CPU kernels choose their packing of K and V by the instruction set.
        "instruction set": (STORE, {}, {"ISA": "amx"}),
        "another one": (STORE, {}, {"ISA": "neon"}),
        "memory layout": (STORE, {}, {"LAYOUT": "LBNHC"}),
        "xxhash with a seed": (STORE, {"prefix_caching_hash_algo": "xxhash"}, {"PYTHONHASHSEED": "1"}),
    }
    answers = dict(zip(cases, identities(list(cases.values())), strict=True))
    assert answers["plain"] == answers.pop("again")
    assert answers["adapters"] == answers.pop("the same adapters"), "after a restart"
    first, second = answers.pop("two ranks")
    stores = [first, second] + [a[0] for a in answers.values()]
    assert all(isinstance(s, dict) for s in stores), stores
    keys = [str((s["groups"], s["revision"], s.get("tenant"))) for s in stores]
    assert len(set(keys)) == len(keys)
    assert len({s["store"]["dirs"][0] for s in stores}) == len(keys)


def test_one_rank_writes_the_files_of_kv_that_several_have() -> None:
    def store(shard: int, **more: Any) -> dict[str, Any]:
        return {"groups": [shard], "store": {"cache_bytes": 1, **more}}

    two = [store(rank // 2, dirs=["/kv"]) for rank in range(4)]
    assert [config.of_worker(two, rank)["store"].get("read_only", False) for rank in range(4)] == [False, True, False, True]
    assert [config.of_worker(two, rank)["groups"] for rank in range(4)] == [[0], [0], [1], [1]]
    assert config.of_worker([store(0)] * 2, 1) == store(0), "there are no files"


def test_loads_within_a_step_must_be_safe() -> None:
    """A configuration is accepted only if a failed load is recomputed or fails its request.
    Otherwise the request would continue from wrong KV."""

    def check(*options: str, ahead: bool = False, v2: bool = False, policy: str = "recompute", groups: int = 1) -> None:
        vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(async_scheduling=ahead), use_v2_model_runner=v2,
            kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy),
        )  # fmt: skip
        config.check_loads_in_steps(vllm_config, SimpleNamespace(kv_cache_groups=[None] * groups), options)

    option = "sync_load_budget_bytes"
    check(option)
    check(option, ahead=True, v2=True, policy="fail")
    for wrong in ({"ahead": True}, {"v2": True}, {"groups": 2}):
        with pytest.raises(errors.NotSupported, match=option):
            check(option, **wrong)
    with pytest.raises(errors.NotSupported, match=r"vLLM 0\.33"):
        check()


def test_what_is_refused(identities: Any) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
        "PYTHONHASHSEED": (STORE, {"prefix_caching_hash_algo": "xxhash_cbor"}, {}),
        "cache_bytes": ({}, {}, {}),
        "cpu_bytes_to_use": (STORE | {"cpu_bytes_to_use": 1}, {}, {}),
        "log": ({"store": {"cache_bytes": 1, "log_dir": "/log"}}, {}, {}),
        "pipeline_parallel_size": (STORE, {"pipeline_parallel_size": 2}, {}),
        "LoRA": (STORE, LORA, {}),
        "layer2": (STORE, {}, {"NO_LAYER": "layer2"}),
    }
    for word, answer in zip(cases, identities(list(cases.values())), strict=True):
        assert isinstance(answer, str)
        assert word in answer
