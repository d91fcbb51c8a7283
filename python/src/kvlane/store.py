"""The store of an engine's process: what is opened, and the few calls of a request."""

from __future__ import annotations

import atexit
import ctypes as c
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import _config, _lib, errors
from .keys import Keys, hash_tokens, page_numbers
from .task import Dump, Load, after_of, stream_of

if TYPE_CHECKING:
    from types import TracebackType


# The stores that are open, also those that the program has dropped: they keep memory that the library may write to. The set has a
# reference more than names, so that the end of the interpreter does not free what is still open then.
_open: set[Store] = set()
c.pythonapi.Py_IncRef(c.py_object(_open))
_logger = logging.getLogger("kvlane")
_LAST = 10.0  # how long the end of a program waits for them, in seconds


class Lease(_lib.Owned):
    """Blocks that stay where they are until release, or for the time that was asked for. `found` is how many, from the first
    key on. Calls with a released lease raise Expired.
    """

    def __init__(self, handle: int, found: int) -> None:
        self.handle, self.found = handle, found
        self._released = False

    def __len__(self) -> int:
        return self.found

    def worth(self, tokens: int) -> int:
        """How many of the blocks, from the first on, are worth loading, as that is faster than computing them again. tokens is
        how many need not be computed where all are loaded. All blocks, until it is known what loads take and, by
        Store.report_computed, what computing does.
        """
        out = c.c_size_t()
        _lib.library().call("worth", self.handle, _lib.number(tokens, "tokens"), c.byref(out))
        return out.value

    def release(self) -> None:
        """Ends the lease. Loads under way keep their blocks. May be called twice."""
        if self._released:
            return
        self._released = True
        with suppress(errors.Expired, errors.Closed):  # its store's close has released it
            _lib.library().call("release", self.handle)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            _lib.library().status("release", self.handle)


class Store(_lib.Owned):
    """A device with a store over it, as `config` says: docs/library.md has its keys.

    Use it in a with statement, or close it: until then it stays, and so do the tensors of its caches and regions. The end of the
    program closes what is open, within ten seconds. Safe from any thread. A child of fork() cannot use its parent's: Forked.
    Timeouts are in seconds, None waits without an end. Calls of a closed store raise Closed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = _config.encode(_config.merged(config))
        self.config: dict[str, Any] = json.loads(text)
        self._lib = _lib.library()
        # No lock guards these, as a child of fork() might find it held for ever: each use is one operation of a dict.
        self._caches: dict[int, _lib.Registered] = {}  # by handle; they keep the tensors
        self._regions: dict[int, _lib.Registered] = {}  # likewise
        self._stuck: list[_lib.Registered] = []  # memory that must stay although it is not registered
        handle = c.c_uint64()
        self._lib.call("open", text.encode(), c.byref(handle))
        self._handle, self.closed = handle.value, False
        _open.add(self)

    @property
    def driver(self) -> str:
        """The device's driver: "cuda", "host" or "sim"."""
        return str((self.config.get("device") or {}).get("driver") or "cuda")

    @property
    def device_index(self) -> int:
        """The number of the device among the driver's."""
        return int((self.config.get("device") or {}).get("index") or 0)

    def dtype(self, group: int = 0) -> str:
        """The element type of a page group's KV cache."""
        groups = self.config.get("groups")
        if groups and not 0 <= group < len(groups):
            raise errors.Invalid(f"page group {group}: the configuration has {len(groups)}")
        model = groups[group]["geometry"] if groups else self.config.get("model") or {}
        return str(model.get("dtype"))

    def keys(self, hashes: bytes, group: int = 0, hash_bytes: int = _lib.HASH_BYTES) -> Keys:
        """The keys of a page group's blocks, from hashes of hash_bytes each: hash_tokens', or the engine's own."""
        n, rest = divmod(len(hashes), _lib.number(hash_bytes, "hash_bytes", least=1))
        if rest:
            raise errors.Invalid(f"{len(hashes)} bytes are not whole hashes of {hash_bytes}")
        _lib.number(group, "page group", most=2**32 - 1)
        out = bytearray(n * _lib.KEY_BYTES)
        if n:
            self._lib.call("keys", self._handle, group, bytes(hashes), hash_bytes, n, _lib.address(out, "keys")[0])
        return Keys(out)

    def token_keys(self, tokens: Any, block_tokens: int, group: int = 0) -> Keys:
        """The keys of the whole blocks of a prompt."""
        return self.keys(hash_tokens(tokens, block_tokens), group)

    def lookup(self, keys: Keys, timeout: float | None = None) -> bytes:
        """A byte for each key: 1 where its block is in memory, 2 where it is in files, else 0. Nothing keeps it there; lease
        does.
        """
        there = bytearray(len(keys))
        if keys:
            self._lib.call(
                "lookup", self._handle, keys.raw, len(keys), _lib.address(there, "answers")[0], _lib.milliseconds(timeout)
            )
        return bytes(there)

    def lease(self, keys: Keys, ttl: float = 0, timeout: float | None = None) -> Lease:
        """The longest prefix of the keys whose blocks are all there, kept there for ttl seconds (0: the longest allowed) or
        until released. Invalid for a ttl that is negative or infinite.
        """
        handle, found = c.c_uint64(), c.c_size_t()
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
    ) -> Load:
        """Copies block keys[i] to page pages[i], verified. The pages are not to be touched until the task, or a layer of it,
        is done.

        after: a CUDA stream, a torch.cuda.Stream or its number, whose work so far may still touch the pages; the copies come
        after it. Without it, pages that such work writes are not the blocks.
        layerwise: layer 0 comes first, and the task's wait_layer works. awaited: CUDA streams will wait for it by stream_wait.
        before: the key of the block before keys[0] in the prompt. Not needed with a lease.
        """
        cache.check()
        numbers = self._pages(keys, pages)
        flags = (_lib.LAYERWISE if layerwise else 0) | (_lib.AWAITED if awaited else 0)
        task = c.c_uint64()
        held = 0 if lease is None else lease.handle
        self._lib.call(
            "load_blocks",
            self._handle,
            held,
            cache.handle,
            keys.raw,
            numbers,
            len(keys),
            self._before(before),
            flags,
            after_of(after),
            c.byref(task),
        )
        return Load(task.value, len(keys), cache)

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
        """Stores block keys[i] from page pages[i]. The pages are not to be changed until the task's source_free. The keys are in
        the order of a prompt, of all page groups by their tokens: the last is evicted first.

        after: a CUDA stream, a torch.cuda.Stream or its number, whose work so far writes the pages; the copies wait for it
        on the device. layerwise: a layer is read once the task's submit_layer was called. before: the key before keys[0],
        where a prompt is stored in pieces.
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
        return Dump(task.value, len(keys), cache)

    @staticmethod
    def _before(key: bytes | Keys | None) -> bytes | None:
        if isinstance(key, Keys):
            if len(key) != 1:
                raise errors.Invalid(f"before has {len(key)} keys: give one, such as keys[0]")
            return key.raw
        if key is not None and len(key) != _lib.KEY_BYTES:
            raise errors.Invalid(f"before has {len(key)} bytes, and a key {_lib.KEY_BYTES}")
        return key

    @staticmethod
    def _pages(keys: Keys, pages: Any) -> Any:
        raw, n = _lib.address(page_numbers(pages), "page numbers")
        if n != 4 * len(keys):
            raise errors.Invalid(f"{len(keys)} keys and {n // 4} pages")
        return raw

    def prefetch(self, keys: Keys) -> Load:
        """Brings blocks into memory, so that a later load finds them there."""
        task = c.c_uint64()
        self._lib.call("prefetch", self._handle, keys.raw, len(keys), c.byref(task))
        return Load(task.value, len(keys))

    def drop(self, keys: Keys) -> int:
        """Takes blocks out of memory, and leaves files alone: what a Manager's job has evicted. Does not wait, and passes over
        blocks that are not there. Returns how many stay for now, since something still uses them.
        """
        stay = c.c_size_t()
        if keys:
            self._lib.call("drop", self._handle, keys.raw, len(keys), c.byref(stay))
        return stay.value

    def stream_wait(self, stream: Any, task: Load, layer: int | None = None) -> None:
        """Makes a CUDA stream wait, on the device, until an awaited load has ended or has brought a layer. It goes on after
        failures too, and without the load after wait_max_ms, when its blocks are Expired: look at the task's result before what
        was computed is used.
        """
        what = _lib.DONE if layer is None else _lib.number(layer, "layer", most=2**31 - 1)
        self._lib.call("stream_wait", self._handle, stream_of(stream), task._handle, what)

    def stats(self) -> dict[str, Any]:
        """What the store has done so far."""
        return dict(self._lib.json("stats", self._handle))

    def metrics(self) -> str:
        """The store's metrics in Prometheus's text format, for a program that serves its own: docs/metrics.md."""
        return self._lib.text("metrics", self._handle).decode(errors="replace")

    def notes(self) -> list[Any]:
        """What the user should know of how the store was opened: fallbacks, and why."""
        return list(self._lib.json("notes", self._handle))

    def report_slowdown(self, percent: float) -> None:
        """Tells by how many percent the program's own work takes longer than without copies beside it."""
        self._lib.call("report_slowdown", self._handle, percent)

    def report_computed(self, tokens: int, seconds: float) -> None:
        """Tells that the KV of so many tokens of a prompt was computed in that time. Fewer than 256 are passed over."""
        self._lib.call("report_computed", self._handle, _lib.number(tokens, "tokens"), seconds)

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
        with suppress(errors.Closed):  # a call that was interrupted has closed it meanwhile
            self._lib.finish(name, handle, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Closes its caches, writes what is still to be written, and closes everything. Dumps that are not durable when the
        time is up are given up. After Timeout, Busy or KeyboardInterrupt it may be called again.
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
        except errors.Forked:  # it is the parent's
            pass
        except errors.Error as e:
            _logger.warning("a store was still open at the end of the program, and was not closed in %g s: %s", _LAST, e)
