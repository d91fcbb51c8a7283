"""Access to the runtime context of SGLang 0.5."""

from __future__ import annotations

from typing import Any

import sglang
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer, PoolTransferResult
from sglang.srt.runtime_context import get_lora, get_model, get_parallel, get_spec

from .. import errors
from .config import Engine
from .pages import Pages, Part

# Arguments of SGLang that affect KV.
_MODEL = (
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",
    "json_model_override_args",
    "context_length",
    "load_format",
)
_SPEC = ("speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision")


def _field(bag: Any, name: str) -> Any:
    """Return an argument of SGLang.

    Raises NotSupported if SGLang no longer has the argument. Otherwise KV computed with different
    values of it would have the same identity.
    """
    try:
        return getattr(bag, name)
    except AttributeError as e:
        raise errors.NotSupported(f"SGLang {sglang.__version__} has no argument {name}, on which KV depends: {e}") from e


def engine(model: str | None = None) -> Engine:
    """Return the running engine. model overrides the name of its model."""
    bag, spec, lora = get_model(), get_spec(), get_lora()
    arguments = {name: _field(bag, name) for name in _MODEL} | {name: _field(spec, name) for name in _SPEC}
    return Engine(
        release=str(sglang.__version__),
        model=str(model or _field(bag, "model_path")),
        revision=_field(bag, "revision"),
        dummy=str(arguments["load_format"]) == "dummy",
        adapters=bool(_field(lora, "enable_lora") or _field(lora, "lora_paths")),
        arguments=arguments,
    )


def replica() -> int:
    """Return the index of this process's data-parallel replica.

    It is the replica of the engine, or of its attention.
    """
    ranks = get_parallel()
    for name in ("dp_rank", "attn_dp_rank"):
        try:
            number = getattr(ranks, name)
        except Exception:
            continue
        if number:
            return int(number)
    return 0


def restorable(pages: Pages, hashes: list[str], transfers: list[PoolTransfer], keep: str) -> PoolTransferResult:
    """Return the length of the longest prefix of pages that can be restored.

    It depends on the pages that each pool has and on the pools' policies. The pages found in the
    longest prefix are leased under the name `keep`.
    """
    known = [t for t in transfers if t.name != "kv"]
    parts = [Part("kv", hashes)] if "kv" in pages.pools else []
    parts += [Part(str(t.name), hashes) for t in known if str(t.name) in pages.pools]
    there = {p.pool: found for p, found in zip(parts, pages.there(parts), strict=True)}
    absent = [False] * len(hashes)

    def prefix(found: list[bool]) -> int:
        return found.index(False) if False in found else len(found)

    # Without a pool "kv", the other pools hold all KV, and their policies decide.
    kv = prefix(there["kv"]) if "kv" in there else len(hashes)
    hits = {"kv": kv} if kv and "kv" in there else {}
    lengths = set(range(1, kv + 1))
    for t in known:
        found = there.get(str(t.name), absent)
        if t.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            continue  # never shortens the prefix, and is not leased
        if t.hit_policy == PoolHitPolicy.ALL_PAGES:
            own = set(range(1, prefix(found[:kv]) + 1))
        else:
            window = max(1, len(t.keys or ()))
            own = {n for n in range(1, kv + 1) if all(found[max(0, n - window) : n])}
        if own:
            hits[str(t.name)] = max(own)
        lengths &= own
    longest = max(lengths, default=0)
    found_of = {pool: [h for h, ok in zip(hashes[:longest], found[:longest], strict=True) if ok] for pool, found in there.items()}
    pages.keep(keep, [Part(pool, found) for pool, found in found_of.items()])
    return PoolTransferResult(longest, hits, sorted(lengths))
