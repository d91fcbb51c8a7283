"""What kvlane's stores are told of an SGLang engine: their options, and the identity of the KV.

The ranks compute it each for themselves, and after a restart anew: nothing here depends on the process.
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

# What the object "kvlane" of SGLang's options may have.
_OPTIONS = ("store", "stream", "rdma", "device", "weights", "tenant", "wait_seconds", "metrics_addr", "config")
WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Rank:
    """Which part of a page this process has."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    replica: int = 0  # of data parallelism


@dataclass(frozen=True)
class Engine:
    """An SGLang engine, for the identity of its KV: its release, its model, and what else it was started with that counts.

    adapters: LoRA adapters may be loaded, whose names do not say what their weights are.
    """

    release: str
    model: str
    revision: str | None
    dummy: bool
    adapters: bool
    arguments: Mapping[str, Any]


def options(extra_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """kvlane's own options out of SGLang's. Invalid where they cannot be right."""
    own = (extra_config or {}).get("kvlane")
    if not isinstance(own, Mapping):
        raise errors.Invalid('SGLang\'s extra config has no object "kvlane", such as {"store": {"cache_bytes": 17179869184}}')
    if wrong := sorted(set(own) - set(_OPTIONS)):
        raise errors.Invalid(f'"kvlane" has {wrong}, and knows {sorted(_OPTIONS)}')
    return _config.merged(own)


def nonce(group: Any) -> bytes:
    """Random bytes, the same on all ranks of a torch process group, which all call this. None: of this process alone."""
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
    """The configuration of a rank's store. form is what is known of how pages hold KV. Ranks that hold the same KV have the
    same configuration, and share files.
    """
    store = dict(own.get("store") or {})
    persistent = bool(_config.directories(store) or store.get("log_dir"))
    replicated = all(g.pool.replicated for g in groups)
    if replicated and rank.tp_size > 1 and store.get("log_dir"):
        raise errors.NotSupported("a log is one process's, and the ranks hold the same KV: give dirs")
    out: dict[str, Any] = {
        "groups": [
            {
                "name": f"{g.pool.name}{i}",
                "layers": numbers,
                "geometry": g.geometry(engine.model, rank.tp_size, rank.tp_rank),
            }
            for i, (g, numbers) in enumerate(zip(groups, layers, strict=True))
        ],
        "revision": _revision(own.get("weights"), engine, rank, form, persistent),
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
            f'nothing says what weights {engine.model} has, and pages are stored on disk: give "kvlane" a "weights" that '
            "changes when they do, such as a commit hash"
        )
    if persistent and engine.adapters and not weights:
        raise errors.Invalid(
            "LoRA is enabled, pages are stored on disk, and an adapter's name and path do not say what its weights are: give "
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
