"""Reuse of a prompt's prefix in generate(), for decoder-only models of Hugging Face transformers.

    with KVLaneCache(model, {"cache_bytes": 1 << 30, "dirs": ["/var/cache/kvlane"]}) as cache:
        out = cache.generate(ids, max_new_tokens=100)

or, in its parts:

    past = cache.load(ids)
    out = model.generate(ids, cache=past, max_new_tokens=100)    # past_key_values=past before transformers 5.24
    cache.save(out, past)

KV is stored as the model computed it, bit by bit, under the hash of all tokens up to it and the identity of model and
weights. What cannot be exact is refused with the reason; what is not provably right is a miss, and is computed.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import itertools
import json
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from . import _config, errors, identity
from ._layer_loads import LayerLoads, LoadingLayer
from ._metrics import opened
from ._model import CACHE_OPTION, CACHE_OPTIONS, Shape, check_config, check_layers, ends_and_padding, media_tokens, probe, uses
from ._weights import Weights
from ._writes import STORED, Writes
from .errors import Status
from .keys import Keys, hash_tokens
from .paged import _DTYPES, Addresses, PagedCache
from .store import Store

if TYPE_CHECKING:
    from types import TracebackType

    from .store import Lease

__all__ = ["CACHE_OPTION", "KVLaneCache"]

_logger = logging.getLogger("kvlane")

# What makes KV depend on more than tokens, in calls of generate.
_REFUSED = ("assistant_model", "prompt_lookup_num_tokens", *CACHE_OPTIONS, "cache_implementation", "prefill_chunk_size")
# Fewer tokens do not tell what computing takes: the library passes over them.
_FEW_TOKENS = 256
# Errors that are the caller's, or of the store as a whole. After all others the blocks are computed anew.
_FATAL = (errors.Invalid, errors.Closed, errors.Forked)


@dataclass
class _Group:
    """Layers of one shape, and which of their tensors make up a block: K and V, or one of them where they differ in length."""

    heads: int
    size: int
    tensors: tuple[int, ...]  # 0 is K, 1 is V
    layers: list[int] = field(default_factory=list)

    def geometry(self, dtype: str, block_tokens: int) -> dict[str, Any]:
        common = {"dtype": dtype, "block_tokens": block_tokens, "tp_size": 1, "tp_rank": 0, "layers": len(self.layers)}
        if len(self.tensors) == 2:
            return {**common, "kv_heads": self.heads, "head_size": self.size, "mla": False}
        return {**common, "kv_heads": 1, "head_size": self.heads * self.size, "mla": True}  # a layer is one tensor

    def memory(self, layers: Mapping[int, tuple[Any, ...]], row: int, block_tokens: int) -> Addresses:
        """A row of the layers' tensors, [rows, heads, tokens, elements] of any strides between rows and heads, as pages of
        block_tokens each: every head of every tensor is a plane of the block.
        """
        every = [layers[layer][i] for layer in self.layers for i in self.tensors]
        item, pages = every[0].element_size(), every[0].shape[2] // block_tokens
        planes, heads = array.array("Q"), range(self.heads)
        for t in every:  # few calls of torch's for each: there are hundreds of planes
            rows, step, *_ = t.stride()
            first, step = t.data_ptr() + row * rows * item, step * item
            planes.extend([first + head * step for head in heads])
        return Addresses(planes, pages, block_tokens * self.size * item, keep=every)


class _Computation:
    """The model's next computation that goes on from a cache, and how long it takes."""

    def __init__(self, model: Any, past: Any, tokens: int, device: Any) -> None:
        self.tokens, self._past, self._device = tokens, weakref.ref(past), device
        self._marks: list[Any] = []
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, with_kwargs=True),
        ]

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _begin(self, _module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if uses(self._past, kwargs) and ids is not None and ids.numel() == self.tokens:
            self._marks = [self._mark()]

    def _end(self, _module: Any, _args: Any, kwargs: Any, _output: Any) -> None:
        if self._marks and uses(self._past, kwargs):
            self._marks.append(self._mark())
            self.stop()

    def stop(self) -> None:
        """Watches no more."""
        for hook in self._hooks:
            hook.remove()

    def seconds(self) -> float:
        """How long it took; 0: it has not ended, or was not seen."""
        if len(self._marks) < 2:
            return 0
        begin, end = self._marks[:2]
        if self._device.type != "cuda":
            return float(end - begin)
        return begin.elapsed_time(end) / 1e3 if end.query() else 0


def _groups_of(shapes: Mapping[int, Shape]) -> list[_Group]:
    """The model's layers by what they keep of a token."""
    out: dict[tuple[int, int, tuple[int, ...]], _Group] = {}
    for layer, s in shapes.items():
        for size, tensors in [(s.k, (0, 1))] if s.k == s.v else [(s.k, (0,)), (s.v, (1,))]:
            out.setdefault((s.heads, size, tensors), _Group(s.heads, size, tensors)).layers.append(layer)
    return list(out.values())


class KVLaneCache:
    """A store of a model's KV, and its use by generate().

    store is the section `store` of a store's configuration (docs/library.md): cache_bytes, dirs, log_dir and so on.
    block_tokens is how many tokens are kept together: shorter blocks find longer prefixes, longer ones are faster. weights
    identifies the model's weights; by default a fingerprint of them does (kvlane.identity.fingerprint), which is taken here.
    tenant keeps tenants apart. config has further sections of the configuration ("stream", "rdma") and
    metrics_addr, where the store's metrics are served; a warning is logged if that address is taken.

    layerwise has the model compute while KV is loaded: each layer waits for its own. For as long as that lasts it takes twice the
    memory on the device that the KV of the prefix has. Where layers keep keys and values of several shapes, or load is given a
    cache to fill, all is there when load returns, as without it.

    The model is asked for the KV of one token here, to see what it keeps. Calls of several threads wait for each other.
    """

    def __init__(
        self,
        model: Any,
        store: Mapping[str, Any],
        *,
        block_tokens: int = 16,
        weights: str | None = None,
        tenant: str = "",
        layerwise: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if block_tokens < 1:
            raise errors.Invalid(f"blocks of {block_tokens} tokens")
        self.model, self.block_tokens = model, block_tokens
        self.counts: Counter[str] = Counter()  # tokens asked for, loaded, refused and saved; failed loads and saves, by status
        self._writes = Writes(_logger)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._watched: _Computation | None = None
        self._layer_loads: LayerLoads | None = None
        check_config(model.config)
        self._dtype, self._device, shapes = probe(model)
        self._shapes, self._groups = shapes, _groups_of(shapes)
        self._layerwise = layerwise and len(self._groups) == 1
        self._weights = Weights(model)
        self._state: tuple[Any, ...] | None = self._weights.state()
        self._ends, self._padding = ends_and_padding(model)
        self.config = self._config(store, weights or identity.fingerprint(model), tenant, config or {})
        self.store = opened(Store, self.config, _logger)

    def _config(self, store: Mapping[str, Any], weights: str, tenant: str, more: Mapping[str, Any]) -> dict[str, Any]:
        more = _config.merged({**more, "store": dict(store)})
        store = more.pop("store")
        hf = self.model.config
        commit = getattr(hf, "_commit_hash", None)
        name = (getattr(hf, "name_or_path", "") if commit else "") or hf.model_type
        kind = str(self._dtype).removeprefix("torch.")
        dtype = _DTYPES.get(kind, kind)
        out: dict[str, Any] = {
            **more,
            "revision": identity.revision(
                hf,
                weights=weights,
                commit=commit,
                attention=",".join(self._weights.implementations()),
                layout="HND",
                code=identity.code(self.model),
            ),
            "tenant": tenant,
            "device": {"driver": "cuda", "index": self._device.index or 0} if self._device.type == "cuda" else {"driver": "host"},
        }
        if self._layerwise and self._device.type == "cuda":
            out["host_streams"] = True
        geometries = [{"name": name, **g.geometry(dtype, self.block_tokens)} for g in self._groups]
        if len(geometries) == 1:
            return _in_own_directory({**out, "model": geometries[0]}, store)
        parts = sorted((layer, g.tensors) for g in self._groups for layer in g.layers)  # without layers that keep nothing
        groups = [
            {
                "name": f"{g.heads}x{g.size} of {'KV' if len(g.tensors) == 2 else 'KV'[g.tensors[0]]}",
                "layers": [parts.index((layer, g.tensors)) for layer in g.layers],
                "geometry": geometry,
            }
            for g, geometry in zip(self._groups, geometries, strict=True)
        ]
        return _in_own_directory({**out, "groups": groups}, store)

    def load(self, ids: Any, past: Any = None) -> Any:
        """A cache for model.generate(ids, cache=...) with as much of ids, [batch, tokens] or [tokens], as is
        stored: whole blocks, and at least the last token is left to compute. Rows of a batch get the same length, the
        shortest row's. Tokens from a row's first padding token on are neither loaded nor saved.

        past is an empty cache to fill, a StaticCache for instance. By default it is a DynamicCache that keeps all tokens,
        those before a sliding window too, since only then save() can store them.

        Where the KVLaneCache is layerwise, and past is not given, the KV may still be on its way. If it does not come, or is
        wrong, the model's computation raises why, and a load after that has what is right.
        """
        return self._load(ids, past, self._layerwise and past is None)

    def _load(self, ids: Any, past: Any, layerwise: bool) -> Any:
        rows = self._rows(ids)
        past = DynamicCache() if past is None else past
        check_layers(past.layers)
        if int(past.get_seq_length()):
            raise errors.Invalid("the cache to fill is not empty")
        with self._lock, torch.no_grad():
            most = (len(rows[0]) - 1) // self.block_tokens * self.block_tokens
            keys = [self._keys(row[:most]) for row in rows]
            self.counts["tokens_asked"] += sum(len(row) for row in rows)
            self._end_layer_loads()
            leases: list[Lease] = []
            try:
                for k in keys if all(keys) else ():
                    leases.append(self.store.lease(k))
                groups = len(self._groups)
                found = min((lease.found // groups for lease in leases), default=0)
                worth = min(lease.worth(lease.found // groups * self.block_tokens) // groups for lease in leases) if found else 0
                self.counts["tokens_refused"] += max(0, found - worth) * self.block_tokens * len(rows)
                if found := min(found, worth):
                    self._fill(past, keys, leases, found, layerwise)
                else:
                    self._check_weights()
            except errors.Error as e:
                self._count(e)
            finally:
                for lease in leases:
                    lease.release()
            # What waits for layers tells nothing of computing.
            self._watch(past, 0 if self._layer_loads else sum(len(row) - int(past.get_seq_length()) for row in rows))
        return past

    def _end_layer_loads(self) -> None:
        """End the previous load, for which possibly no caller waited."""
        loads, self._layer_loads = self._layer_loads, None
        if loads:
            loads.end()

    def _watch(self, past: Any, tokens: int) -> None:
        """Has it measured how long it takes to compute the rest of a prompt, where that tells something."""
        if self._watched:
            self._watched.stop()
        self._watched = _Computation(self.model, past, tokens, self._device) if tokens >= _FEW_TOKENS else None

    def _count(self, e: errors.Error) -> None:
        """Counts an error after which blocks are computed anew, and raises one that is not of that kind."""
        if isinstance(e, _FATAL):
            raise e
        self.counts[f"failed_{e.status.name.lower()}"] += 1

    def _fill(self, past: Any, keys: Sequence[Keys], leases: list[Lease], found: int, layerwise: bool) -> None:
        """Loads the first `found` blocks of each row into past: as many as are right in all of them. They are copied to
        where they stay. layerwise: they may still be on their way, and need the leases.
        """
        tokens, n = found * self.block_tokens, len(keys)
        parts = {layer: self._empty(s, n, tokens) for layer, s in self._shapes.items()}
        groups = len(self._groups)
        self._quiesce()  # what this memory was used for before
        awaited = layerwise and self._device.type == "cuda"
        with contextlib.ExitStack() as registered:  # which waits for what still touches the pages
            tasks = []
            for row in range(n):
                pages = registered.enter_context(self._registered(parts, row))
                tasks.append(
                    self.store.load(
                        pages, keys[row][: found * groups], _numbers(range(found), groups), leases[row],
                        layerwise=layerwise, awaited=awaited,
                    )
                )  # fmt: skip
            self._check_weights()  # while blocks are copied: it takes milliseconds
            if layerwise:
                for lease in leases:
                    registered.callback(lease.release)
                self._layer_loads = LayerLoads(
                    self.model, past, tasks, store=self.store, device=self._device, resources=registered.pop_all(),
                    on_end=lambda error: self._count(error) if error else self.counts.update(tokens_loaded=tokens * n),
                )  # fmt: skip
                leases.clear()
                _give(past, parts, self._layer_loads)
                return
            good = min([self._loaded(task, found) for task in tasks])
        if good == 0:
            return
        end = good * self.block_tokens
        if good < found:
            parts = {layer: (k[:, :, :end], v[:, :, :end]) for layer, (k, v) in parts.items()}
        _give(past, parts)
        self.counts["tokens_loaded"] += end * n

    def _empty(self, s: Shape, rows: int, tokens: int) -> tuple[Any, ...]:
        """Memory for a layer's K and V. Layers have their own, so that each is free once the model has copied it."""
        options = {"dtype": self._dtype, "device": self._device}
        if s.k == s.v:
            return tuple(torch.empty(2, rows, s.heads, tokens, s.k, **options).unbind(0))
        return tuple(torch.empty(rows, s.heads, tokens, size, **options) for size in (s.k, s.v))

    def _registered(self, layers: Mapping[int, tuple[Any, ...]], row: int) -> PagedCache:
        """A row of the layers' tensors as pages of the store."""
        return PagedCache(self.store, groups=[g.memory(layers, row, self.block_tokens) for g in self._groups])

    def _loaded(self, task: Any, found: int) -> int:
        """How many of a row's blocks were loaded and are right, from the first on."""
        try:
            task.result()
            return found
        except errors.Error as e:
            self._count(e)
        task.wait()
        bad = (i for i, r in enumerate(task.results()) if r.status != Status.OK or r.undefined)
        return next(bad, found * len(self._groups)) // len(self._groups)

    def save(self, ids: Any, past: Any, *, durable: bool = False) -> int:
        """Stores the KV that past holds of ids, which may be what generate returned, and returns how many blocks of it were
        not there before.

        It returns when lookups find them; with durable, when the slowest tier has them. Blocks that cannot be stored now
        (Busy, NoSpace) are counted and left out. Without durable a block that cannot be written to files stays in memory:
        not_written counts it, and a record is logged once in a while.
        """
        rows = self._rows(ids)
        length = int(past.get_seq_length())
        if length > len(rows[0]):
            raise errors.Invalid(f"the cache holds {length} tokens, and {len(rows[0])} are given")
        for layer in past.layers:
            if isinstance(layer, LoadingLayer):
                layer.wait()
        layers = self._held(past, len(rows), length)
        blocks = length // self.block_tokens
        stored = 0
        with self._lock, torch.no_grad():
            self._check_weights()
            self._end_layer_loads()
            if self._watched and (seconds := self._watched.seconds()):
                self.store.report_computed(self._watched.tokens, seconds)
                self._watch(None, 0)
            for row, tokens in enumerate(rows):
                if blocks:
                    stored += self._save_row(layers, row, self._keys(tokens[: blocks * self.block_tokens]), durable)
        return stored

    def _save_row(self, layers: Mapping[int, Any], row: int, keys: Keys, durable: bool) -> int:
        groups = len(self._groups)
        there = self.store.lookup(keys)
        missing = [b for b in range(len(keys) // groups) if not all(there[b * groups : (b + 1) * groups])]
        if not missing:
            return 0
        self._quiesce()  # what computes them
        with self._registered(layers, row) as pages:
            chosen = Keys(k for b in missing for k in keys[b * groups : (b + 1) * groups])
            before = keys[missing[0] * groups - 1] if missing[0] else None
            task = self.store.dump(pages, chosen, _numbers(missing, groups), before=before)
            stored = len(missing)
            try:
                if durable:
                    task.result()
                else:
                    task.published()
                    self._writes.add(task)
            except errors.Error as e:
                task.wait()
                results = task.results()
                bad = [i for i, r in enumerate(results) if r.status not in STORED]
                there = bytes(len(chosen)) if durable else self.store.lookup(chosen)
                self._writes.note(results[i].status for i in bad if there[i])
                bad = [i for i in bad if not there[i]]
                if bad:
                    self._count(e)
                stored -= len({i // groups for i in bad})
        self.counts["tokens_saved"] += stored * self.block_tokens
        return stored

    @property
    def not_written(self) -> Counter[str]:
        """Blocks that were saved and could not be written to files, by status. They are found while memory has them."""
        self._writes.poll()
        return self._writes.counts

    def _held(self, past: Any, rows: int, length: int) -> dict[int, tuple[Any, ...]]:
        """K and V of each layer, as long as `length`; raises where they are not the model's, or not all there."""
        check_layers(past.layers)
        out: dict[int, tuple[Any, ...]] = {}
        for number, s in self._shapes.items() if length else ():
            layer = past.layers[number]
            k, v = layer.keys, layer.values
            held = k.shape[2] if isinstance(layer, DynamicLayer) else min(int(layer.get_seq_length()), k.shape[2])
            if held < length and layer.is_sliding:
                raise errors.NotSupported(
                    f"layer {number} keeps the last {held} of {length} tokens, so that no prefix can be stored: "
                    "use the cache that load() returns, which keeps all"
                )
            want = (rows, s.heads, length)
            if (*k.shape[:2], held) != want or {k.dtype, v.dtype} != {self._dtype} or (k.shape[3], v.shape[3]) != (s.k, s.v):
                raise errors.Mismatch(
                    f"layer {number} holds {tuple(k.shape)} of {k.dtype}, V of {v.dtype}, which are not this model's {want} of "
                    f"{self._dtype}"
                )
            out[number] = tuple(_in_rows(t[:, :, :length]) for t in (k, v))
        return out

    def generate(self, ids: Any = None, **options: Any) -> Any:
        """model.generate(ids, **options) from the longest stored prefix of ids on; what was computed is stored. Returns what
        generate does.
        """
        ids = options.pop("input_ids", None) if ids is None else ids
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise errors.Invalid("ids are not a tensor [batch, tokens]")
        generation = options.get("generation_config") or self.model.generation_config
        for name in ("num_beams", "num_return_sequences"):
            if (options.get(name) or getattr(generation, name, None) or 1) != 1:
                raise errors.NotSupported(f"{name}: a sequence is generated from each prompt")
        for name in _REFUSED:
            if options.get(name) is not None:
                raise errors.NotSupported(f"{name}: what it does to KV is not known here; use load() and save()")
        if options.get("use_cache") is False:
            raise errors.NotSupported("use_cache=False: nothing would be reused")
        mask = options.pop("attention_mask", None)
        if mask is not None and not bool(mask.bool().all()):
            raise errors.NotSupported(
                "attention_mask: padding is part of no prefix; give prompts of one length, or one after another"
            )
        pad = options.get("pad_token_id", getattr(generation, "pad_token_id", None))
        if mask is None and pad is not None and pad not in self._ends and bool((ids == pad).any()):
            raise errors.NotSupported(
                f"the prompt has the padding token {pad}, which generate() leaves out: give an attention_mask if it is to count"
            )
        for name, value in options.items():
            if isinstance(value, torch.Tensor):
                raise errors.NotSupported(f"{name}: KV would depend on more than the tokens")
        # A streamer is told of the prompt, which must not happen twice.
        past = self._load(ids, None, self._layerwise and options.get("streamer") is None)
        loads = next((layer.loads for layer in past.layers if isinstance(layer, LoadingLayer)), None)
        try:
            out = self._generate(ids, past, options)
        except errors.Error as e:
            if loads is None or e is not loads.error:
                raise
            past = self._load(ids, None, False)  # what is right of it: the model has come to no token yet
            out = self._generate(ids, past, options)
        self.save(out if isinstance(out, torch.Tensor) else out.sequences, past)
        return out

    def _generate(self, ids: Any, past: Any, options: Mapping[str, Any]) -> Any:
        return self.model.generate(ids, **{CACHE_OPTION: past}, attention_mask=torch.ones_like(ids), **options)

    def _keys(self, tokens: Sequence[int]) -> Keys:
        """The keys of the whole blocks before any padding, and of each block those of all page groups."""
        if self._padding and not self._padding.isdisjoint(tokens):
            tokens = tokens[: next((i for i, t in enumerate(tokens) if t in self._padding), len(tokens))]
        hashes = hash_tokens(tokens, self.block_tokens)
        by_group = [self.store.keys(hashes, g) for g in range(len(self._groups))]
        if len(by_group) == 1:
            return by_group[0]
        return Keys(itertools.chain.from_iterable(zip(*by_group, strict=True)))

    def _rows(self, ids: Any) -> list[list[int]]:
        if os.getpid() != self._process:  # where another thread's call may hold the lock for ever
            raise errors.Forked("a KVLaneCache was made before fork(): make one in the child, or start it by spawn")
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        rows: list[list[int]] = [ids] if not ids or isinstance(ids[0], int) else [list(r) for r in ids]
        if not rows[0] or len({len(r) for r in rows}) != 1:
            raise errors.Invalid("prompts have no tokens, or not one length")
        if self.model.training:
            raise errors.Invalid("the model is training, where its KV is random: call model.eval()")
        special = media_tokens(self.model.config)
        if special and not all(map(special.isdisjoint, rows)):
            raise errors.NotSupported(
                "the prompt has tokens that stand for images, video or sound: KV depends on more than the tokens"
            )
        return rows

    def _check_weights(self) -> None:
        if self._weights.state() != self._state:
            raise errors.Invalid("the model's weights, adapters, place or attention have changed: make a new KVLaneCache")

    def weights_changed(self) -> None:
        """Says that the model's weights were changed in a way that is not seen: load, save and generate are Invalid from now on.
        Writes that torch counts are seen, and those through `data` to a tensor as a whole, by samples of its values; those to
        a part of one are not.
        """
        self._state = None

    def _quiesce(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self, timeout: float | None = None) -> None:
        """Writes what is still to be written, and closes the store."""
        self._watch(None, 0)
        self._end_layer_loads()
        end = None if timeout is None else time.monotonic() + timeout
        if not self.store.closed:
            self._writes.finish(timeout)
        self.store.close(None if end is None else max(0.0, end - time.monotonic()))

    def __enter__(self) -> KVLaneCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _give(past: Any, parts: dict[int, tuple[Any, ...]], loads: LayerLoads | None = None) -> None:
    """Makes each layer's K and V, which are taken out of parts, what an empty cache holds; layers that would copy them to no
    end keep these. Of a new DynamicCache they may be on their way.
    """
    while past.layer_class_to_replicate is not None and len(past.layers) <= max(parts):
        past.layers.append(past.layer_class_to_replicate())
    like: dict[str, Any] | None = None  # what transformers makes of the first such layer, with tensors that cost a call each
    for at, number in enumerate(sorted(parts)):
        k, v = parts.pop(number)
        its = past.layers[number]
        if type(its) is not DynamicLayer or past.offloading:
            past.update(k, v, number)
            continue
        if like is None:
            its.lazy_initialization(k, v)
            like = dict(vars(its))
        vars(its).update(like, keys=k, values=v)
        if loads is not None:
            LoadingLayer.convert(its, loads, at)


def _in_rows(t: Any) -> Any:
    """The tensor, or a copy of it, in which the tokens of a head follow one another."""
    return t if t.stride(3) == 1 and t.stride(2) == t.shape[3] else t.contiguous()


def _numbers(blocks: Sequence[int], groups: int) -> array.array[int]:
    """The pages of blocks, of all page groups."""
    return array.array("I", blocks if groups == 1 else [b for b in blocks for _ in range(groups)])


def _in_own_directory(config: dict[str, Any], store: Mapping[str, Any]) -> dict[str, Any]:
    """config with the store's section. Each identity has a folder of its own in the directories, and all share their bounds."""
    own = {k: config.get(k) for k in ("model", "groups", "revision", "tenant", "adapter")}
    name = "kv-" + hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:24]
    out = _config.with_folder(store, name)
    if out.get("log_dir"):
        out["log_dir"] = os.path.join(out["log_dir"], name)
    return {**config, "store": out}
