"""The store of an engine's process, with the calls that serve a request."""

from __future__ import annotations

import atexit
import ctypes as c
import json
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _config, _lib, errors
from ._traces import Span, Tracer
from .keys import Keys, hash_tokens, page_numbers
from .task import Dump, Load, after_of, stream_of

if TYPE_CHECKING:
    from types import TracebackType


# Open stores, including those that the program has dropped: the library may still write to the
# memory that they keep. The extra reference keeps the set alive when the interpreter shuts down.
_open: set[Store] = set()
c.pythonapi.Py_IncRef(c.py_object(_open))
_logger = logging.getLogger("kvlane")
_LAST = 10.0  # seconds that the exit of the program waits for open stores


LOST, STORED, REMOVED = 1, 2, 3
_TIERS = ("cache", "file", "log", "remote", "object")
_EVENTS = 1024  # of a call


class Event(NamedTuple):
    """A change that a store made to the contents of a tier.

    change is STORED, REMOVED or LOST. LOST: earlier events do not give the contents of the tiers;
    tier and key mean nothing. The last event of a block in a tier gives its state there.
    """

    change: int
    tier: str
    key: bytes


class Lease(_lib.Owned):
    """A lease, which keeps blocks from eviction until release or for the requested time.

    `found` is the number of leased blocks, from the first key on. Calls with a released lease raise
    Expired.
    """

    def __init__(self, handle: int, found: int) -> None:
        self.handle, self.found = handle, found
        self._released = False

    def __len__(self) -> int:
        return self.found

    def worth(self, tokens: int, rest: int = 0) -> int:
        """Return how many of the blocks, from the first on, are faster to load than to compute.

        tokens is the number of tokens that need not be computed if all blocks are loaded. rest is
        the number that is computed in any case at the same time: the other tokens of the request,
        and those of other requests. Returns all blocks until the durations of loading and of
        computing (Store.report_computed) are known. The delay of Store.report_delay is added to the
        duration of loading.
        """
        out = c.c_size_t()
        _lib.library().call("worth", self.handle, _lib.number(tokens, "tokens"), _lib.number(rest, "rest"), c.byref(out))
        return out.value

    def release(self) -> None:
        """Release the lease. Loads in progress keep their blocks. May be called twice."""
        if self._released:
            return
        self._released = True
        with suppress(errors.Expired, errors.Closed):  # closing the store has released it
            _lib.library().call("release", self.handle)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            _lib.library().status("release", self.handle)


class Store(_lib.Owned):
    """A store over one device, opened from `config`. docs/library.md documents its keys.

    Use it in a with statement, or close it. Until then the store and the tensors of its caches and
    regions stay alive. The exit of the program closes open stores within ten seconds.

    Safe from any thread. In a child of fork(), the parent's store raises Forked. Timeouts are in
    seconds; None waits without limit. Calls of a closed store raise Closed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = _config.encode(_config.merged(config))
        self.config: dict[str, Any] = json.loads(text)
        self._lib = _lib.library()
        # No lock protects these, because a child of fork() could inherit it locked. Each access is
        # one atomic dict operation.
        self._caches: dict[int, _lib.Registered] = {}  # by handle; keeps the tensors
        self._regions: dict[int, _lib.Registered] = {}  # likewise
        self._stuck: list[_lib.Registered] = []  # registration failed, but the memory must stay
        self._tracer: Tracer | None = None
        handle = c.c_uint64()
        self._lib.call("open", text.encode(), c.byref(handle))
        self._handle, self.closed = handle.value, False
        _open.add(self)

    @property
    def driver(self) -> str:
        """Return the device's driver: "cuda", "host" or "sim"."""
        return str((self.config.get("device") or {}).get("driver") or "cuda")

    @property
    def device_index(self) -> int:
        """Return the index of the device in the driver."""
        return int((self.config.get("device") or {}).get("index") or 0)

    def dtype(self, group: int = 0) -> str:
        """Return the element type of a page group's KV cache."""
        groups = self.config.get("groups")
        if groups and not 0 <= group < len(groups):
            raise errors.Invalid(f"page group {group}: the configuration has {len(groups)}")
        model = groups[group]["geometry"] if groups else self.config.get("model") or {}
        return str(model.get("dtype"))

    def keys(self, hashes: bytes, group: int = 0, hash_bytes: int = _lib.HASH_BYTES) -> Keys:
        """Return the keys of a page group's blocks, from hashes of hash_bytes each.

        The hashes are those of hash_tokens, or the engine's own.
        """
        n, rest = divmod(len(hashes), _lib.number(hash_bytes, "hash_bytes", least=1))
        if rest:
            raise errors.Invalid(f"{len(hashes)} bytes of hashes: must be a multiple of {hash_bytes}")
        _lib.number(group, "page group", most=2**32 - 1)
        out = bytearray(n * _lib.KEY_BYTES)
        if n:
            self._lib.call("keys", self._handle, group, bytes(hashes), hash_bytes, n, _lib.address(out, "keys")[0])
        return Keys(out)

    def token_keys(self, tokens: Any, block_tokens: int, group: int = 0) -> Keys:
        """Return the keys of the whole blocks of a prompt."""
        return self.keys(hash_tokens(tokens, block_tokens), group)

    def lookup(self, keys: Keys, timeout: float | None = None) -> bytes:
        """Return a byte for each key: 1 if its block is in memory, 2 if it is in files, else 0.

        The blocks may be evicted later; a lease prevents that.
        """
        there = bytearray(len(keys))
        if keys:
            with self._spanned("lookup", keys):
                self._lib.call(
                    "lookup", self._handle, keys.raw, len(keys), _lib.address(there, "answers")[0], _lib.milliseconds(timeout)
                )
        return bytes(there)

    def lease(self, keys: Keys, ttl: float = 0, timeout: float | None = None) -> Lease:
        """Lease the longest prefix of the keys whose blocks are all present.

        The lease lasts ttl seconds (0: the longest allowed) or until released. Raises Invalid for a
        negative or infinite ttl.
        """
        handle, found = c.c_uint64(), c.c_size_t()
        with self._spanned("lease", keys):
            self._lib.call(
                "lease_blocks",
                self._handle,
                keys.raw,
                len(keys),
                _lib.duration(ttl),
                _lib.milliseconds(timeout),
                c.byref(handle),
                c.byref(found),
            )
        return Lease(handle.value, found.value)

    def load(
        self,
        cache: _lib.Registered,
        keys: Keys,
        pages: Any,
        lease: Lease | None = None,
        after: Any = None,
        *,
        layerwise: bool = False,
        awaited: bool = False,
        before: bytes | Keys | None = None,
        promote: bool | None = None,
    ) -> Load:
        """Copy block keys[i] to page pages[i] and verify it.

        Do not access the pages until the task, or the layer in question, is done.

        after: a CUDA stream (torch.cuda.Stream or its number) whose current work may still access
        the pages. The copies wait for this work. Otherwise it may overwrite the loaded blocks.
        layerwise: layer 0 is loaded first, and wait_layer of the task may be used. awaited: CUDA
        streams will wait for the load by stream_wait. before: the key of the block before keys[0]
        in the prompt. Not needed with a lease. promote: with direct storage, which blocks of files
        enter the cache: all (True), those that direct storage cannot read (False), or those and the
        ones that are requested again soon (None).
        """
        cache.check()
        numbers = self._pages(keys, pages)
        flags = (_lib.LAYERWISE if layerwise else 0) | (_lib.AWAITED if awaited else 0)
        if promote is not None:
            flags |= _lib.PROMOTE if promote else _lib.BYPASS
        task = c.c_uint64()
        lease_handle = 0 if lease is None else lease.handle
        self._lib.call(
            "load_blocks",
            self._handle,
            lease_handle,
            cache.handle,
            keys.raw,
            numbers,
            len(keys),
            self._before(before),
            flags,
            after_of(after),
            c.byref(task),
        )
        return Load(task.value, len(keys), cache, self._begun("load", keys))

    def dump(
        self,
        cache: _lib.Registered,
        keys: Keys,
        pages: Any,
        after: Any = None,
        *,
        layerwise: bool = False,
        before: bytes | Keys | None = None,
    ) -> Dump:
        """Store block keys[i] from page pages[i].

        Do not change the pages until the task's source_free returns. Give the keys in the order of
        the prompt, with all page groups ordered by their tokens: the last is evicted first.

        after: a CUDA stream (torch.cuda.Stream or its number) whose current work writes the pages.
        The copies wait for it on the device. layerwise: a layer is read after the task's
        submit_layer. before: the key before keys[0], if a prompt is stored in pieces.
        """
        cache.check()
        numbers = self._pages(keys, pages)
        task = c.c_uint64()
        flags = _lib.LAYERWISE if layerwise else 0
        self._lib.call(
            "dump_blocks",
            self._handle,
            cache.handle,
            keys.raw,
            numbers,
            len(keys),
            self._before(before),
            flags,
            after_of(after),
            c.byref(task),
        )
        return Dump(task.value, len(keys), cache, self._begun("dump", keys))

    @staticmethod
    def _before(key: bytes | Keys | None) -> bytes | None:
        if isinstance(key, Keys):
            if len(key) != 1:
                raise errors.Invalid(f"before has {len(key)} keys: give one, such as keys[0]")
            return key.raw
        if key is not None and len(key) != _lib.KEY_BYTES:
            raise errors.Invalid(f"before has {len(key)} bytes, a key has {_lib.KEY_BYTES}")
        return key

    @staticmethod
    def _pages(keys: Keys, pages: Any) -> Any:
        raw, n = _lib.address(page_numbers(pages), "page numbers")
        if n != 4 * len(keys):
            raise errors.Invalid(f"{len(keys)} keys and {n // 4} pages")
        return raw

    def prefetch(self, keys: Keys) -> Load:
        """Read blocks from files into memory, for later loads."""
        task = c.c_uint64()
        self._lib.call("prefetch", self._handle, keys.raw, len(keys), c.byref(task))
        return Load(task.value, len(keys), span=self._begun("prefetch", keys))

    def set_anchors(self, keys: Keys, anchors: Keys) -> None:
        """Set the anchor of each key, by which the tier "remote" places its block.

        It is the key of the first block of the block's run of 64 blocks, counted from the start of
        the prompt. lease records the anchors of a whole prompt. Call this before other calls with
        blocks of the middle of a prompt. Without the tier it has no effect.
        """
        if len(keys) != len(anchors):
            raise errors.Invalid(f"{len(anchors)} anchors of {len(keys)} keys")
        if keys:
            self._lib.call("set_anchors", self._handle, keys.raw, anchors.raw, len(keys))

    def drop(self, keys: Keys) -> int:
        """Drop blocks from memory, but not from files. Used for the evicted blocks of a Manager's job.

        Does not wait. Absent blocks are ignored. Returns the number of blocks that stay because
        they are in use.
        """
        stay = c.c_size_t()
        if keys:
            self._lib.call("drop", self._handle, keys.raw, len(keys), c.byref(stay))
        return stay.value

    def remove(self, keys: Keys, timeout: float | None = None) -> int:
        """Remove blocks from all tiers. Returns the number of removed blocks.

        They are not found again until they are dumped again; in directories, also after a power
        failure. Absent blocks are ignored. Raises Busy if some blocks stay because they are leased,
        pinned, loaded or dumped; the others are removed.
        """
        removed = c.c_size_t()
        if keys:
            self._lib.call("remove", self._handle, keys.raw, len(keys), _lib.milliseconds(timeout), c.byref(removed))
        return removed.value

    def pin(self, keys: Keys, timeout: float | None = None) -> None:
        """Pin blocks in the tiers with directories, until unpin, also after a restart.

        They are neither evicted nor removed. They count toward the bounds of the tiers, of which
        half may be pinned. Raises NotFound if no such tier has one of the blocks, NoSpace if they
        exceed the limit, and NotSupported without such a tier.
        """
        if keys:
            self._lib.call("pin", self._handle, keys.raw, len(keys), _lib.milliseconds(timeout))

    def unpin(self, keys: Keys, timeout: float | None = None) -> None:
        """Remove the pins of blocks. Blocks that are not pinned are ignored."""
        if keys:
            self._lib.call("unpin", self._handle, keys.raw, len(keys), _lib.milliseconds(timeout))

    def why(self, keys: Keys, timeout: float | None = None) -> list[dict[str, Any]]:
        """Explain for each key why its block is stored or not. docs/library.md describes the objects.

        The keys are in the order of a prompt.
        """
        if not keys:
            return []
        return list(self._lib.json("why", self._handle, keys.raw, len(keys), _lib.milliseconds(timeout)))

    def events(self) -> list[Event]:
        """Return the oldest events since the last call, at most 1,024. Does not wait.

        The first call begins the recording and returns LOST. LOST follows again when more than
        65,536 events were waiting, which are then dropped. Changes by other processes, and evictions
        by block servers, are not events.
        """
        raw, n = (_lib.Event * _EVENTS)(), c.c_size_t(_EVENTS)
        self._lib.call("events", self._handle, raw, c.byref(n))
        return [Event(e.change, _TIERS[e.tier], bytes(e.key)) for e in raw[: n.value]]

    def stream_wait(self, stream: Any, task: Load, layer: int | None = None) -> None:
        """Make a CUDA stream wait, on the device, for an awaited load or for one of its layers.

        The stream continues even if the load fails. After wait_max_ms it continues without the
        load, whose blocks are then Expired. Check the task's result before using anything that was
        computed from the pages.
        """
        what = _lib.DONE if layer is None else _lib.number(layer, "layer", most=2**31 - 1)
        self._lib.call("stream_wait", self._handle, stream_of(stream), task._handle, what)

    def trace(self, provider: Any = None) -> None:
        """Make OpenTelemetry spans of lookups, leases, loads, dumps and prefetches from now on.

        provider is a TracerProvider; None is the program's global one. The span of a task ends when
        the program sees that the task has ended. Raises NotSupported without the package
        opentelemetry-api.
        """
        self._tracer = Tracer(provider)

    def _spanned(self, operation: str, keys: Keys) -> AbstractContextManager[None]:
        return nullcontext() if self._tracer is None else self._tracer.span(operation, len(keys))

    def _begun(self, operation: str, keys: Keys) -> Span | None:
        return None if self._tracer is None else self._tracer.begin(operation, len(keys))

    def stats(self) -> dict[str, Any]:
        """Return the store's counters since it was opened."""
        return dict(self._lib.json("stats", self._handle))

    @property
    def direct(self) -> bool:
        """Report whether loads read files by direct storage, where it is possible."""
        return bool(self.stats()["direct"]["on"])

    def metrics(self) -> str:
        """Return the store's metrics in Prometheus's text format.

        For a program that serves metrics itself. docs/metrics.md documents the metrics.
        """
        return self._lib.text("metrics", self._handle).decode(errors="replace")

    def notes(self) -> list[Any]:
        """Return notices about the opened store: fallbacks and their reasons."""
        return list(self._lib.json("notes", self._handle))

    def report_slowdown(self, percent: float) -> None:
        """Report by how many percent copies slow down the program's own work."""
        self._lib.call("report_slowdown", self._handle, percent)

    def report_computed(self, tokens: int, seconds: float) -> None:
        """Report that computing the KV of `tokens` tokens of a prompt took `seconds`.

        Reports of 256 tokens or more give the time per token, smaller ones the fixed time of a
        step.
        """
        self._lib.call("report_computed", self._handle, _lib.number(tokens, "tokens"), seconds)

    def report_delay(self, seconds: float) -> None:
        """Report the time from the decision to load blocks in memory to their use, less Load.seconds.

        Lease.worth adds it to each load.
        """
        self._lib.call("report_delay", self._handle, seconds)

    def _register(self, name: str, owner: Any, owners: dict[int, Any], *memory: Any) -> int:
        handle = c.c_uint64()
        try:
            self._lib.call(name, self._handle, *memory, c.byref(handle))
        except errors.Error as e:
            if "must stay until the engine is closed" in str(e):
                self._stuck.append(owner)
            raise
        owners[handle.value] = owner
        return handle.value

    def _close_cache(self, cache: _lib.Registered, timeout: float | None) -> None:
        if cache.handle in self._caches:
            self._finish("close_cache", cache.handle, timeout)
            self._caches.pop(cache.handle, None)

    def _finish(self, name: str, handle: int, timeout: float | None) -> None:
        with suppress(errors.Closed):  # an interrupted call has closed it meanwhile
            self._lib.finish(name, handle, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Close the caches, write pending blocks to files and close the store.

        Dumps that are not durable at the timeout are abandoned. After Timeout, Busy or
        KeyboardInterrupt it may be called again.
        """
        if self.closed:
            return
        end = None if timeout is None else time.monotonic() + timeout
        for cache in list(self._caches.values()):
            cache.close(None if end is None else end - time.monotonic())
        self._finish("close", self._handle, None if end is None else end - time.monotonic())
        self.closed = True
        self._regions.clear()
        self._stuck.clear()
        _open.discard(self)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    end = time.monotonic() + _LAST
    for store in list(_open):
        try:
            store.close(end - time.monotonic())
        except errors.Forked:  # the store is the parent's
            pass
        except errors.Error as e:
            _logger.warning("a store was still open at the end of the program, and was not closed in %g s: %s", _LAST, e)
