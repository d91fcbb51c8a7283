"""Options and KV identity of kvlane's stores in an SGLang engine.

Each rank computes them by itself, again after a restart. Nothing here depends on the process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _config, errors, identity
from .._metrics import address
from .pages import Group

# Keys of the object "kvlane" in SGLang's options.
_OPTIONS = ("store", "stream", "rdma", "device", "weights", "tenant", "wait_seconds", "metrics_addr", "config")
WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Rank:
    """Position of this process among the ranks.

    It determines which part of a page's KV the process computes.
    """

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    replica: int = 0  # index of the data-parallel replica


@dataclass(frozen=True)
class Engine:
    """Properties of an SGLang engine that identify its KV: release, model and relevant arguments.

    adapters: LoRA adapters may be loaded. Their names do not identify their weights.
    """

    release: str
    model: str
    revision: str | None
    dummy: bool
    adapters: bool
    arguments: Mapping[str, Any]


def options(extra_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return kvlane's own options from SGLang's. Raises Invalid if they are missing or unknown."""
    own = (extra_config or {}).get("kvlane")
    if not isinstance(own, Mapping):
        raise errors.Invalid('SGLang\'s extra config has no object "kvlane", such as {"store": {"cache_bytes": 17179869184}}')
    if wrong := sorted(set(own) - set(_OPTIONS)):
        raise errors.Invalid(f'"kvlane" has {wrong}; known options are {sorted(_OPTIONS)}')
    return _config.merged(own)


def nonce(group: Any) -> bytes:
    """Return random bytes, the same on all ranks of a torch process group. All ranks must call it.

    group None gives bytes of this process alone.
    """
    import torch

    out = [os.urandom(32)]
    if group is not None and torch.distributed.get_world_size(group) > 1:
        torch.distributed.broadcast_object_list(out, group=group, group_src=0)
    return out[0]


def store_config(
    own: Mapping[str, Any],
    engine: Engine,
    rank: Rank,
    form: Mapping[str, Any],
    device: Mapping[str, Any],
    *,
    groups: list[Group],
    layers: list[list[int]],
) -> dict[str, Any]:
    """Return the configuration of a rank's store.

    form describes the layout of KV in pages. Ranks that hold the same KV have the same
    configuration and share files.
    """
    store = dict(own.get("store") or {})
    replicated = all(g.pool.replicated for g in groups)
    if replicated and rank.tp_size > 1 and store.get("log_dir"):
        raise errors.NotSupported("only one process may open a log, but the ranks share the same KV: give dirs")
    out: dict[str, Any] = {
        "groups": [
            {
                "name": f"{g.pool.name}{i}",
                "layers": numbers,
                "geometry": g.geometry(engine.model, rank.tp_size, rank.tp_rank),
            }
            for i, (g, numbers) in enumerate(zip(groups, layers, strict=True))
        ],
        "revision": _revision(own.get("weights"), engine, rank, form, _config.persistent(store)),
    }
    if "tenant" in own:
        out["tenant"] = _config.tenant(own["tenant"])
    name = "sglang-" + hashlib.sha256(json.dumps(out, sort_keys=True).encode()).hexdigest()[:24]
    store = _config.with_folder(store, name)
    if store.get("log_dir"):
        store["log_dir"] = os.path.join(store["log_dir"], name)
    sections: dict[str, Any] = {k: dict(own[k]) for k in ("stream", "rdma") if k in own}
    if own.get("metrics_addr"):
        ranks, number = rank.pp_size * rank.tp_size, rank.pp_rank * rank.tp_size + rank.tp_rank
        sections["metrics_addr"] = address(str(own["metrics_addr"]), ranks, number, rank.replica)
    return {**out, **sections, "device": {**device, **(own.get("device") or {})}, "store": store}


def _revision(weights: Any, engine: Engine, rank: Rank, form: Mapping[str, Any], persistent: bool) -> str:
    folder = identity.model_folder(engine.model, engine.revision)
    known = str(weights) if weights else "dummy" if engine.dummy else identity.folder_fingerprint(folder)
    if persistent and known is None:
        raise errors.Invalid(
            f'the weights of {engine.model} cannot be identified, and pages are stored on disk: give "kvlane" a "weights" that '
            "changes when they do, such as a commit hash"
        )
    if persistent and engine.adapters and not weights:
        raise errors.Invalid(
            "LoRA is enabled, pages are stored on disk, and an adapter's name and path do not identify its weights: give "
            '"kvlane" a "weights" that changes when those of the model or of an adapter do'
        )
    config = json.loads((folder / "config.json").read_text()) if folder and (folder / "config.json").is_file() else {}
    parts = {
        "sglang": engine.release,
        "model": engine.model,
        "revision": engine.revision,
        "config": identity.revision(config, weights=known or "unknown"),
        "arguments": dict(engine.arguments),
        "pipeline": [rank.pp_rank, rank.pp_size],
        "context": [rank.cp_rank, rank.cp_size],
        "form": dict(form),
    }
    return "sglang-" + hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
