"""Reuse of prompt prefixes in generate(), for decoder-only models of Hugging Face transformers.

    with KVLaneCache(model, {"cache_bytes": 1 << 30, "dirs": ["/var/cache/kvlane"]}) as cache:
        out = cache.generate(ids, max_new_tokens=100)

or step by step (past_key_values=past instead of cache=past before transformers 5.24):

    past = cache.load(ids)
    out = model.generate(ids, cache=past, max_new_tokens=100)
    cache.save(out, past)

KV is stored as the model computed it, bit by bit. Its key is the hash of all tokens up to it and
the identity of the model and its weights. A model or option without exact results is refused with
the reason. Stored KV that cannot be verified is a miss and is computed.
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

# Options of generate() that make KV depend on more than tokens.
_REFUSED = ("assistant_model", "prompt_lookup_num_tokens", *CACHE_OPTIONS, "cache_implementation", "prefill_chunk_size")
# Errors of the caller, or of the store as a whole. After any other error the blocks are computed.
_FATAL = (errors.Invalid, errors.Closed, errors.Forked)


@dataclass
class _Group:
    """Layers of one shape, and the tensors that form a block.

    The tensors are K and V, or only one of them if their sizes differ.
    """

    heads: int
    size: int
    tensors: tuple[int, ...]  # 0 is K, 1 is V
    layers: list[int] = field(default_factory=list)

    def geometry(self, dtype: str, block_tokens: int) -> dict[str, Any]:
        common = {"dtype": dtype, "block_tokens": block_tokens, "tp_size": 1, "tp_rank": 0, "layers": len(self.layers)}
        if len(self.tensors) == 2:
            return {**common, "kv_heads": self.heads, "head_size": self.size, "mla": False}
        # a layer is one tensor
        return {**common, "kv_heads": 1, "head_size": self.heads * self.size, "mla": True}

    def memory(self, layers: Mapping[int, tuple[Any, ...]], row: int, block_tokens: int) -> Addresses:
        """Return a row of the layers' tensors as pages of block_tokens each.

        The tensors are [rows, heads, tokens, elements], with any strides between rows and heads.
        Every head of every tensor is a plane of the block.
        """
        every = [layers[layer][i] for layer in self.layers for i in self.tensors]
        item, pages = every[0].element_size(), every[0].shape[2] // block_tokens
        planes, heads = array.array("Q"), range(self.heads)
        for t in every:  # only a few calls of torch per tensor: there are hundreds of planes
            rows, step, *_ = t.stride()
            first, step = t.data_ptr() + row * rows * item, step * item
            planes.extend([first + head * step for head in heads])
        return Addresses(planes, pages, block_tokens * self.size * item, keep=every)


class _Computation:
    """Measures the model's next forward pass that continues from a cache."""

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
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def seconds(self) -> float:
        """Return the duration in seconds, or 0 if the pass has not ended or was not seen."""
        if len(self._marks) < 2:
            return 0
        begin, end = self._marks[:2]
        if self._device.type != "cuda":
            return float(end - begin)
        return begin.elapsed_time(end) / 1e3 if end.query() else 0


def _groups_of(shapes: Mapping[int, Shape]) -> list[_Group]:
    """Group the model's layers by the shape of their KV."""
    out: dict[tuple[int, int, tuple[int, ...]], _Group] = {}
    for layer, s in shapes.items():
        for size, tensors in [(s.k, (0, 1))] if s.k == s.v else [(s.k, (0,)), (s.v, (1,))]:
            out.setdefault((s.heads, size, tensors), _Group(s.heads, size, tensors)).layers.append(layer)
    return list(out.values())


class KVLaneCache:
    """A store of a model's KV, for use with generate(). Calls of several threads run in turn.

    store is the section `store` of a store's configuration (docs/library.md): cache_bytes, dirs,
    log_dir and so on. block_tokens is the number of tokens of a block: shorter blocks find longer
    prefixes, longer blocks are faster. weights identifies the model's weights; by default the
    constructor takes their fingerprint (kvlane.identity.fingerprint). tenant separates tenants.
    config has further sections of the configuration ("stream", "rdma") and metrics_addr, the
    address that serves the store's metrics. If that address is in use, a warning is logged.

    layerwise: the model computes while KV is loaded, and each layer waits for its own KV. Meanwhile
    the KV of the prefix takes twice its memory on the device. If layers have keys and values of
    several shapes, or load gets a cache to fill, load returns after all KV is loaded, as without
    layerwise.

    The constructor computes the KV of one token to find its shape.
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
        # tokens requested, loaded, refused and saved; failed loads and saves, by status
        self.counts: Counter[str] = Counter()
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
        # Layers without KV of their own are left out.
        parts = sorted((layer, g.tensors) for g in self._groups for layer in g.layers)
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
        """Return a cache for model.generate(ids, cache=...) with the stored prefix of ids.

        ids are [batch, tokens] or [tokens]. The prefix consists of whole blocks, and at least the
        last token remains to compute. All rows of a batch get the length of the row with the
        shortest prefix. Tokens from a row's first padding token on are neither loaded nor saved.

        past is an empty cache to fill, for instance a StaticCache. By default it is a DynamicCache
        that keeps all tokens, including those before a sliding window, as save() needs them.

        If the KVLaneCache is layerwise and past is not given, the KV may still be loading. If the
        load fails, the model's forward pass raises the error, and a later load returns the valid
        blocks.
        """
        return self._load(ids, past, self._layerwise and past is None)

    def _load(self, ids: Any, past: Any, layerwise: bool) -> Any:
        rows = self._rows(ids)
        past = DynamicCache() if past is None else past
        check_layers(past.layers)
        if int(past.get_seq_length()):
            raise errors.Invalid("the cache to fill is not empty")
        begun = time.perf_counter()
        with self._lock, torch.no_grad():
            self._report_watched()
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
                tokens = [lease.found // groups * self.block_tokens for lease in leases]
                every = sum(len(row) for row in rows)
                worth = min(lease.worth(n, every - n) // groups for lease, n in zip(leases, tokens, strict=True)) if found else 0
                self.counts["tokens_refused"] += max(0, found - worth) * self.block_tokens * len(rows)
                if found := min(found, worth):
                    moved = self._fill(past, keys, leases, found, layerwise)
                    self.store.report_delay(max(0.0, time.perf_counter() - begun - moved))
                else:
                    self._check_weights()
            except errors.Error as e:
                self._count(e)
            finally:
                for lease in leases:
                    lease.release()
            # The duration of a pass that waits for layers is not that of computing.
            self._watch(past, 0 if self._layer_loads else sum(len(row) - int(past.get_seq_length()) for row in rows))
        return past

    def _end_layer_loads(self) -> None:
        """End the previous load, if its result was not awaited."""
        loads, self._layer_loads = self._layer_loads, None
        if loads:
            loads.end()

    def _report_watched(self) -> None:
        """Report the time of the watched computation, if it has ended."""
        if self._watched and (seconds := self._watched.seconds()):
            self.store.report_computed(self._watched.tokens, seconds)
            self._watch(None, 0)

    def _watch(self, past: Any, tokens: int) -> None:
        """Measure how long the rest of a prompt takes to compute."""
        if self._watched:
            self._watched.stop()
        self._watched = _Computation(self.model, past, tokens, self._device) if tokens else None

    def _count(self, e: errors.Error) -> None:
        """Count an error after which blocks are computed. Raises errors in _FATAL."""
        if isinstance(e, _FATAL):
            raise e
        self.counts[f"failed_{e.status.name.lower()}"] += 1

    def _fill(self, past: Any, keys: Sequence[Keys], leases: list[Lease], found: int, layerwise: bool) -> float:
        """Load the first `found` blocks of each row into past, up to the first invalid one of a row.

        The blocks are loaded into their final memory. Returns the seconds of the slowest load.
        layerwise: returns 0. The loads may still be in progress then, and hold the leases.
        """
        tokens, n = found * self.block_tokens, len(keys)
        parts = {layer: self._empty(s, n, tokens) for layer, s in self._shapes.items()}
        groups = len(self._groups)
        self._quiesce()  # wait for earlier work that uses this memory
        awaited = layerwise and self._device.type == "cuda"
        with contextlib.ExitStack() as registered:  # its exit waits for accesses to the pages
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
                return 0.0
            good = min([self._loaded(task, found) for task in tasks])
            moved = max(task.seconds() for task in tasks)
        if good == 0:
            return moved
        end = good * self.block_tokens
        if good < found:
            parts = {layer: (k[:, :, :end], v[:, :, :end]) for layer, (k, v) in parts.items()}
        _give(past, parts)
        self.counts["tokens_loaded"] += end * n
        return moved

    def _empty(self, s: Shape, rows: int, tokens: int) -> tuple[Any, ...]:
        """Return memory for a layer's K and V.

        Each layer has its own memory, so that it is freed once the model has copied it.
        """
        options = {"dtype": self._dtype, "device": self._device}
        if s.k == s.v:
            return tuple(torch.empty(2, rows, s.heads, tokens, s.k, **options).unbind(0))
        return tuple(torch.empty(rows, s.heads, tokens, size, **options) for size in (s.k, s.v))

    def _registered(self, layers: Mapping[int, tuple[Any, ...]], row: int) -> PagedCache:
        """Register a row of the layers' tensors as pages of the store."""
        return PagedCache(self.store, groups=[g.memory(layers, row, self.block_tokens) for g in self._groups])

    def _loaded(self, task: Any, found: int) -> int:
        """Return the number of a row's blocks that are loaded and valid, from the first on."""
        try:
            task.result()
            return found
        except errors.Error as e:
            self._count(e)
        task.wait()
        bad = (i for i, r in enumerate(task.results()) if r.status != Status.OK or r.undefined)
        return next(bad, found * len(self._groups)) // len(self._groups)

    def save(self, ids: Any, past: Any, *, durable: bool = False) -> int:
        """Store the KV of ids that past holds.

        Returns the number of blocks that were not stored before.

        ids may be the output of generate. Returns once lookups find the blocks; with durable, once
        they are in the slowest tier. Blocks that cannot be stored now (Busy, NoSpace) are counted
        and left out. Without durable, a block that cannot be written to files stays in memory:
        not_written counts it, and the failure is logged at a limited rate.
        """
        rows = self._rows(ids)
        length = int(past.get_seq_length())
        if length > len(rows[0]):
            raise errors.Invalid(f"the cache holds {length} tokens, and {len(rows[0])} are given")
        for layer in past.layers:
            if isinstance(layer, LoadingLayer):
                layer.wait()
        layers = self._layers_of(past, len(rows), length)
        blocks = length // self.block_tokens
        stored = 0
        with self._lock, torch.no_grad():
            self._check_weights()
            self._end_layer_loads()
            self._report_watched()
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
        self._quiesce()  # the work that computes them
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
        """Saved blocks that could not be written to files, by status.

        They are found while they are in memory.
        """
        self._writes.poll()
        return self._writes.counts

    def _layers_of(self, past: Any, rows: int, length: int) -> dict[int, tuple[Any, ...]]:
        """Return K and V of each layer, cut to `length`.

        Raises if they do not fit the model or are incomplete.
        """
        check_layers(past.layers)
        out: dict[int, tuple[Any, ...]] = {}
        for number, s in self._shapes.items() if length else ():
            layer = past.layers[number]
            k, v = layer.keys, layer.values
            stored = k.shape[2] if isinstance(layer, DynamicLayer) else min(int(layer.get_seq_length()), k.shape[2])
            if stored < length and layer.is_sliding:
                raise errors.NotSupported(
                    f"layer {number} keeps the last {stored} of {length} tokens, so that no prefix can be stored: "
                    "use the cache that load() returns, which keeps all"
                )
            want = (rows, s.heads, length)
            if (*k.shape[:2], stored) != want or {k.dtype, v.dtype} != {self._dtype} or (k.shape[3], v.shape[3]) != (s.k, s.v):
                raise errors.Mismatch(
                    f"layer {number} holds {tuple(k.shape)} of {k.dtype}, V of {v.dtype}, which are not this model's {want} of "
                    f"{self._dtype}"
                )
            out[number] = tuple(_in_rows(t[:, :, :length]) for t in (k, v))
        return out

    def generate(self, ids: Any = None, **options: Any) -> Any:
        """Call model.generate(ids, **options) from the longest stored prefix of ids.

        Stores the new KV. Returns the result of generate.
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
                raise errors.NotSupported(f"{name}: its effect on KV is unknown; use load() and save()")
        if options.get("use_cache") is False:
            raise errors.NotSupported("use_cache=False: no KV would be reused")
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
        # A streamer receives the prompt, and must not receive it twice.
        past = self._load(ids, None, self._layerwise and options.get("streamer") is None)
        loads = next((layer.loads for layer in past.layers if isinstance(layer, LoadingLayer)), None)
        try:
            out = self._generate(ids, past, options)
        except errors.Error as e:
            if loads is None or e is not loads.error:
                raise
            # Load the valid part. The model has not computed a token yet.
            past = self._load(ids, None, False)
            out = self._generate(ids, past, options)
        self.save(out if isinstance(out, torch.Tensor) else out.sequences, past)
        return out

    def _generate(self, ids: Any, past: Any, options: Mapping[str, Any]) -> Any:
        return self.model.generate(ids, **{CACHE_OPTION: past}, attention_mask=torch.ones_like(ids), **options)

    def _keys(self, tokens: Sequence[int]) -> Keys:
        """Return the keys of the whole blocks before any padding.

        The keys of all page groups of a block follow one another.
        """
        if self._padding and not self._padding.isdisjoint(tokens):
            tokens = tokens[: next((i for i, t in enumerate(tokens) if t in self._padding), len(tokens))]
        hashes = hash_tokens(tokens, self.block_tokens)
        by_group = [self.store.keys(hashes, g) for g in range(len(self._groups))]
        if len(by_group) == 1:
            return by_group[0]
        return Keys(itertools.chain.from_iterable(zip(*by_group, strict=True)))

    def _rows(self, ids: Any) -> list[list[int]]:
        if os.getpid() != self._process:  # another thread of the parent may hold the lock
            raise errors.Forked("the KVLaneCache was created before fork(): create one in the child, or start it by spawn")
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        rows: list[list[int]] = [ids] if not ids or isinstance(ids[0], int) else [list(r) for r in ids]
        if not rows[0] or len({len(r) for r in rows}) != 1:
            raise errors.Invalid("prompts have no tokens, or not one length")
        if self.model.training:
            raise errors.Invalid("the model is in training mode, so its KV is random: call model.eval()")
        special = media_tokens(self.model.config)
        if special and not all(map(special.isdisjoint, rows)):
            raise errors.NotSupported(
                "the prompt has tokens that stand for images, video or sound: KV depends on more than the tokens"
            )
        return rows

    def _check_weights(self) -> None:
        if self._weights.state() != self._state:
            raise errors.Invalid("the model's weights, adapters, device or attention have changed: create a new KVLaneCache")

    def weights_changed(self) -> None:
        """Report a change of the model's weights that is not detected.

        Afterwards load, save and generate raise Invalid.

        Writes that torch counts are detected. So are writes to a whole tensor through `data`, by
        samples of its values. Writes to a part of a tensor through `data` are not.
        """
        self._state = None

    def _quiesce(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self, timeout: float | None = None) -> None:
        """Write pending blocks and close the store."""
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
    """Move each layer's K and V from parts into an empty cache.

    The tensors are not copied if the layer can use them as they are. Tensors of a new DynamicCache
    may still be loading.
    """
    while past.layer_class_to_replicate is not None and len(past.layers) <= max(parts):
        past.layers.append(past.layer_class_to_replicate())
    # The attributes of the first layer of a kind, as transformers initializes it. Other layers copy
    # them, because initializing a layer takes several calls of torch.
    like: dict[str, Any] | None = None
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
    """Return the tensor, or a copy in which the tokens of a head are contiguous."""
    return t if t.stride(3) == 1 and t.stride(2) == t.shape[3] else t.contiguous()


def _numbers(blocks: Sequence[int], groups: int) -> array.array[int]:
    """Return the page numbers of blocks, of all page groups."""
    return array.array("I", blocks if groups == 1 else [b for b in blocks for _ in range(groups)])


def _in_own_directory(config: dict[str, Any], store: Mapping[str, Any]) -> dict[str, Any]:
    """Return config with the section `store`, with a directory for this identity.

    All identities in a directory share its bound.
    """
    own = {k: config.get(k) for k in ("model", "groups", "revision", "tenant", "adapter")}
    name = "kv-" + hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:24]
    out = _config.with_folder(store, name)
    if out.get("log_dir"):
        out["log_dir"] = os.path.join(out["log_dir"], name)
    return {**config, "store": out}
