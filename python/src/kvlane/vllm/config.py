"""Page groups and KV identity of kvlane's stores in a vLLM engine.

The scheduler and the workers compute them separately and must get the same result. Nothing here
depends on the process, except `kernels`, which the workers send to the scheduler.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import _config, errors, identity

# Keys of kv_connector_extra_config: kvlane's own, and those of vLLM's OffloadingConnector.
_OURS = (
    "store", "stream", "rdma", "device", "weights", "tenant", "log_seconds", "layerwise_files", "metrics_addr", "traces",
    "config",
)  # fmt: skip
_VLLMS = ("offload_prompt_only", "self_describing_kv_events", "sync_load_budget_bytes")
# The smallest upper bound of the head size that every geometry can express.
_MAX_HEAD_SIZE = 1 << 20


@dataclass(frozen=True)
class PageGroup:
    """A page group: vLLM's number for it, and one worker's bytes of a block in each layer."""

    group_id: int
    layers: int
    page_bytes: int
    shards: int  # the number of workers with different bytes
    block_tokens: int
    what: str  # vLLM's description of the form of its KV


def page_groups(vllm_config: Any, kv_cache_config: Any, group_ids: tuple[int, ...]) -> list[PageGroup]:
    """Return the page groups that vLLM offloads, in its order."""
    from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs, iter_layer_specs

    tp = vllm_config.parallel_config.tensor_parallel_size
    heads = vllm_config.model_config.get_total_num_kv_heads()
    out = []
    for i in group_ids:
        group = kv_cache_config.kv_cache_groups[i]
        specs = list(iter_layer_specs(group.kv_cache_spec))
        sizes = set()
        for spec in specs:
            if isinstance(spec, AttentionSpec):
                sizes.add(spec.unpadded_page_size_bytes)
            elif isinstance(spec, MambaSpec):
                sizes.add(replace(spec, page_size_padded=None).page_size_bytes)
            else:
                raise errors.NotSupported(f"page group {i}: {type(spec).__name__} is not supported")
        if len(sizes) > 1:
            raise errors.NotSupported(f"page group {i}: its layers' pages differ in size ({sorted(sizes)} bytes)")
        if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs) and len({type(s) for s in specs}) > 1:
            raise errors.NotSupported(f"page group {i}: its layers are of different kinds")
        shards = min(tp, heads) if isinstance(specs[0], AttentionSpec) else tp
        if isinstance(specs[0], MLAAttentionSpec):
            shards = 1  # a latent is the same for all ranks
        out.append(PageGroup(i, len(group.layer_names), sizes.pop(), shards, specs[0].block_size, repr(specs[0])))
    return out


def check_layerwise(vllm_config: Any) -> None:
    """Raise NotSupported if vLLM could return tokens computed from KV that failed to load.

    The load and the computation are in the same step.
    """
    if vllm_config.scheduler_config.async_scheduling:
        raise errors.NotSupported(
            "LayerwiseConnector with asynchronous scheduling, which computes a token from one whose KV may be found wrong: "
            "start vLLM with --no-async-scheduling, or use Connector"
        )
    if vllm_config.use_v2_model_runner:
        raise errors.NotSupported(
            "LayerwiseConnector with vLLM's model runner V2, which does not compute tokens of a step a second time: set "
            "VLLM_USE_V2_MODEL_RUNNER=0, or use Connector"
        )


def check_loads_in_steps(vllm_config: Any, kv_cache_config: Any, options: tuple[str, ...]) -> None:
    """Raise NotSupported if loads within a step (sync_load_budget_bytes) could yield wrong tokens.

    options are the options of vLLM's OffloadingConnector.
    """
    what = "sync_load_budget_bytes"
    if what not in options:
        raise errors.NotSupported(f"{what}: vLLM 0.33 and later have it")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise errors.NotSupported(f"{what}: the model has several page groups, whose failures within a step vLLM does not handle")
    ahead = vllm_config.scheduler_config.async_scheduling or vllm_config.use_v2_model_runner
    if ahead and vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute":
        raise errors.NotSupported(
            f"{what} with kv_load_failure_policy recompute, which does not compute tokens of a step a second time with "
            "asynchronous scheduling or model runner V2: set the policy to fail, or --no-async-scheduling and "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )


def why_whole(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Return the reason why KV cannot be moved layer by layer within a step, or None if it can."""
    from vllm.v1.kv_cache_interface import AttentionSpec, iter_layer_specs

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} page groups, so failures within a step cannot be reported to vLLM"
    if not all(isinstance(s, AttentionSpec) for s in iter_layer_specs(groups[0].kv_cache_spec)):
        return "the model has layers other than attention, for which vLLM does not call"
    if vllm_config.parallel_config.use_ubatching:
        return "vLLM computes a step in parts (--enable-dbo)"
    return None


def kernels(vllm_config: Any, kv_cache_config: Any, group_ids: tuple[int, ...]) -> dict[str, Any]:
    """Return the properties of this worker's kernels that determine the form of KV in a page.

    The KV cache specification does not contain them: vLLM's version, the platform, the layers'
    attention backends, and on CPUs the instruction set that packs K and V. Only workers know their
    layers.
    """
    import torch
    import vllm
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import AttentionSpec, iter_layer_specs

    layer_type: Any = AttentionLayerBase
    backends, isas = [], set()
    for i in group_ids:
        group = kv_cache_config.kv_cache_groups[i]
        layers = get_layers_from_vllm_config(vllm_config, layer_type, group.layer_names)
        if unknown := sorted(set(group.layer_names) - set(layers)):
            raise errors.NotSupported(f"page group {i}: vLLM does not report the attention backend of {', '.join(unknown)}")
        backends.append(sorted({layer.get_attn_backend().get_name() for layer in layers.values()}))
        for spec in iter_layer_specs(group.kv_cache_spec) if current_platform.is_cpu() else ():
            if isinstance(spec, AttentionSpec):
                from vllm.v1.attention.backends import cpu_attn

                dtype, cache = vllm_config.model_config.dtype, vllm_config.cache_config.cache_dtype
                isas.add(cpu_attn._get_attn_isa(dtype, spec.block_size, spec.head_size, cache))
    out: dict[str, Any] = {"vllm": vllm.__version__, "platform": current_platform.device_name, "backends": backends}
    if current_platform.is_cpu():  # a set has kernels for several generations of an architecture
        out["cpu"] = [platform.machine(), torch.backends.cpu.get_cpu_capability(), *sorted(isas)]
    return out


def store_config(
    vllm_config: Any, kv_cache_config: Any, groups: list[PageGroup], kernels: Mapping[str, Any], rank: int
) -> dict[str, Any]:
    """Return the configuration of the store of a rank's worker.

    Ranks that hold the same KV have the same configuration and share files.
    """
    extra: Mapping[str, Any] = _config.merged(vllm_config.kv_transfer_config.kv_connector_extra_config)
    if wrong := sorted(set(extra) - set(_OURS) - set(_VLLMS)):
        raise errors.Invalid(f"kv_connector_extra_config has {wrong}; known options are {sorted(_OURS + _VLLMS)}")
    store = dict(extra.get("store") or {})
    if not store.get("cache_bytes"):
        raise errors.Invalid('kv_connector_extra_config has no {"store": {"cache_bytes": ...}}, the memory that each worker pins')
    if store.get("log_dir"):
        raise errors.NotSupported("a log is one process's, and the scheduler has to look for blocks too: give dirs")
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise errors.NotSupported(f"{name} of {getattr(parallel, name)}: kvlane.vllm supports tensor parallelism alone")
    model, first, out = str(vllm_config.model_config.model), 0, []
    for g in groups:
        dtype, size = "int8", g.page_bytes
        if size > _MAX_HEAD_SIZE and size % 4 == 0:
            dtype, size = "float32", size // 4
        geometry = {
            # A page is one opaque plane per layer, of which each shard has one "head".
            "name": model,
            "dtype": dtype,
            "layers": g.layers,
            "kv_heads": g.shards,
            "head_size": size,
            "block_tokens": g.block_tokens,
            "tp_size": g.shards,
            "tp_rank": rank * g.shards // parallel.tensor_parallel_size,
            "state": True,
        }
        out.append({"name": f"vllm{g.group_id}", "layers": list(range(first, first + g.layers)), "geometry": geometry})
        first += g.layers
    own = {"groups": out, "revision": _revision(vllm_config, kv_cache_config, groups, kernels, _config.persistent(store))}
    if "tenant" in extra:
        own["tenant"] = _config.tenant(extra["tenant"])
    name = "vllm-" + hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:24]
    store = _config.with_folder(store, name)
    return own | {k: dict(extra[k]) for k in ("stream", "rdma", "device") if k in extra} | {"store": store}


def of_worker(stores: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """Return the configuration of a rank's worker, from those of all ranks.

    If several ranks have the same KV, each keeps it in its own memory. Only the first of them
    writes files; all read them.
    """
    own = stores[rank]
    if stores.index(own) == rank or not own["store"].get("dirs"):
        return own
    return {**own, "store": {**own["store"], "read_only": True}}


def _revision(vllm_config: Any, kv_cache_config: Any, groups: list[PageGroup], kernels: Mapping[str, Any], durable: bool) -> str:
    """Return a text of all properties that KV depends on, except the groups' geometries."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    algorithm = str(cache.prefix_caching_hash_algo)
    parts: dict[str, Any] = {
        "kernels": dict(kernels),
        "model": _model(model, vllm_config.load_config, extra.get("weights"), durable),
        "cache_dtype": str(cache.cache_dtype),
        "layout": str(kv_cache_config.kv_cache_layout or cache.kv_cache_layout),
        "groups": [g.what for g in groups],
        "hash": _hash_algorithm(algorithm, durable),
    }
    speculative = vllm_config.speculative_config
    if speculative is not None:
        draft = getattr(speculative, "draft_model_config", None)
        parts["draft"] = [
            str(speculative.method),
            _model(draft, vllm_config.load_config, extra.get("weights"), durable) if draft else None,
        ]
    if durable and vllm_config.lora_config is not None and not extra.get("weights"):
        raise errors.Invalid(
            "LoRA is enabled, blocks outlive the process, and an adapter's name and path do not identify its weights: give "
            'kv_connector_extra_config a "weights" that changes when those of the model or of an adapter do, or neither "dirs" '
            'nor "remote"'
        )
    text = json.dumps(parts, sort_keys=True, default=str)
    return "vllm-" + hashlib.sha256(text.encode()).hexdigest()


def _hash_algorithm(name: str, durable: bool) -> list[str]:
    seed = os.environ.get("PYTHONHASHSEED")
    if durable and name.startswith("xxhash") and seed is None:
        raise errors.Invalid(
            f"prefix_caching_hash_algo is {name}, whose hashes differ from process to process, and blocks outlive it: "
            "set --prefix-caching-hash-algo sha256_cbor (or sha256), or the environment variable PYTHONHASHSEED to a number"
        )
    # the other algorithms hash the output of pickle
    python = "" if name.endswith("_cbor") else ".".join(platform.python_version_tuple()[:2])
    return [name, str(seed), python]


def _model(model: Any, load: Any, weights: Any, durable: bool) -> dict[str, Any]:
    config = model.hf_config
    if not weights:
        weights = (
            f"dummy-{model.seed}"
            if str(load.load_format) == "dummy"
            else identity.folder_fingerprint(identity.model_folder(model.model, model.revision))
        )
    if not weights and durable:
        raise errors.Invalid(
            f"the weights of {model.model} cannot be identified, and blocks outlive the process: give kv_connector_extra_config "
            'a "weights" that changes when they do, such as a commit hash'
        )
    return {
        "name": str(model.model),
        "revision": str(model.revision),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        # selects the factors of longrope
        "max_model_len": model.max_model_len if "longrope" in str(config.to_dict()) else 0,
        "config": identity.revision(config, weights=str(weights or "unknown")),
    }
