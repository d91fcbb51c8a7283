"""SGLang's pools as page groups of one store, with transfers of pages by SGLang's hashes."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .. import errors
from .._metrics import opened
from .._writes import STORED, LimitedLog, Writes
from ..errors import Status
from ..keys import Keys
from ..paged import Addresses, PagedCache
from ..store import Store
from ..task import Dump, Load
from .leases import SECONDS, Leases

logger = logging.getLogger(__name__)

HASH_BYTES = 32
MAX_DIMENSION = 1 << 20  # of a geometry's numbers
LOOKUP_SECONDS = 5.0
# Errors that are raised: misuse or the end of the store. Other errors are misses.
_FATAL = (errors.Invalid, errors.Closed, errors.Forked)


@dataclass(frozen=True)
class Plane:
    """A part of every page of a pool. Page p has `size` bytes at address + p * stride.

    layer is the layer with which a load completes the plane.
    """

    layer: int
    address: int
    size: int
    stride: int


@dataclass(frozen=True)
class Pool:
    """A pool of SGLang's. A page has page_size of its indices.

    replicated: every tensor-parallel rank has the same bytes.
    """

    name: str
    pages: int
    page_size: int
    planes: tuple[Plane, ...]
    replicated: bool
    keep: Any = None  # reference to memory that must not be freed


@dataclass(frozen=True)
class Group:
    """The planes of a pool that have one size and stride: a page group of the store."""

    pool: Pool
    planes: tuple[Plane, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in one plane."""
        return self.planes[0].size

    def geometry(self, model: str, tp_size: int, tp_rank: int) -> dict[str, Any]:
        """Return the group's geometry.

        A plane's part of a page is opaque: `heads` pieces of bytes.
        """
        heads = 1
        while self.page_bytes // heads > MAX_DIMENSION or self.page_bytes % heads:
            heads += 1
        shards = 1 if self.pool.replicated else tp_size
        return {
            "name": model,
            "dtype": "int8",
            "layers": len(self.planes),
            "kv_heads": heads * shards,
            "head_size": self.page_bytes // heads,
            "block_tokens": self.pool.page_size,
            "tp_size": shards,
            "tp_rank": tp_rank if shards > 1 else 0,
            "state": True,
        }

    def memory(self) -> Addresses:
        """Return the addresses of the group's pages."""
        return Addresses(
            [p.address for p in self.planes], self.pool.pages, self.page_bytes, self.planes[0].stride, keep=self.pool.keep
        )


@dataclass(frozen=True)
class Part:
    """Pages of a pool, identified by SGLang's hashes."""

    pool: str
    hashes: Sequence[str]
    pages: Sequence[int] = ()


@dataclass
class Batch:
    """Keys and pages of a load or dump.

    For each key, entries has the index of its part and the index of its hash in that part. before
    is the key before the first one, if known.
    """

    keys: Keys
    pages: list[int]
    entries: list[tuple[int, int]]
    parts: Sequence[Part]
    before: bytes | None

    def answers(self, good: Sequence[bool]) -> list[list[bool]]:
        """Report for each part's entries whether all their keys are good."""
        out = [[True] * len(p.hashes) for p in self.parts]
        for (part, i), ok in zip(self.entries, good, strict=True):
            out[part][i] &= ok
        return out


class Failures:
    """Failures by operation and reason, logged at a limited rate."""

    def __init__(self) -> None:
        self._log = LimitedLog(logger)

    @property
    def counts(self) -> Counter[str]:
        """Failed pages by operation and reason."""
        return self._log.counts

    def add(self, what: str, why: str, n: int, detail: str = "") -> None:
        """Count n failures."""
        self._log.add(f"{what}: {why}", n, f"kvlane failed to {what} %d pages: " + (detail or why).replace("%", "%%"))


def digest(name: str, salt: bytes = b"") -> bytes:
    """Return a block's hash for SGLang's name of a page.

    A name of 64 hexadecimal digits is the hash itself. Other names are hashed. A salt changes the
    result.
    """
    # fromhex also accepts spaces and upper case. Different names would then be one block.
    if re.fullmatch("[0-9a-f]{64}", name):
        raw = bytes.fromhex(name)
    else:
        raw = hashlib.sha256(b"name\0" + name.encode(errors="surrogatepass")).digest()
    return hashlib.sha256(salt + raw).digest() if salt else raw


def numbers(indices: Any, page_size: int, n: int) -> list[int]:
    """Return the page numbers of n pages from their indices.

    Each page has page_size consecutive indices, and the first is a multiple of page_size.
    Raises Invalid otherwise.
    """
    flat = indices.detach().cpu().flatten()
    if flat.numel() != n * page_size:
        raise errors.Invalid(f"{flat.numel()} indices for {n} pages of {page_size}")
    if not n:
        return []
    rows = flat.reshape(n, page_size)
    first = rows[:, :1]
    if bool((first % page_size).any()) or bool((rows - first != rows.new_tensor(range(page_size))).any()):
        raise errors.Invalid(f"the indices do not cover whole pages of {page_size}")
    return [int(p) for p in (first[:, 0] // page_size).tolist()]


class Pages:
    """A store of the pages of some pools.

    Safe from any thread. Each call waits at most wait_seconds.

    configure returns the store's configuration for the page groups. nonce is random, and the same
    on ranks that share files. Pages that are absent, corrupt or unreachable are misses: False in
    the answers, counted and logged. Invalid, Closed and Forked are raised.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        configure: Callable[[list[Group], list[list[int]]], Mapping[str, Any]],
        wait_seconds: float,
        nonce: bytes,
    ) -> None:
        self._nonce, self._resets = nonce, 0
        self._salt = b""  # set by reset
        self.pools = {p.name: p for p in pools}
        self.wait_seconds = wait_seconds
        self.failures = Failures()
        self.writes = Writes(logger)
        self.leases = Leases()
        self.groups: list[Group] = []
        self._of: dict[str, list[int]] = {}
        for pool in pools:
            order = sorted(pool.planes, key=lambda p: (p.size, p.stride, p.layer))
            self._of[pool.name] = []
            for _, planes in groupby(order, key=lambda p: (p.size, p.stride)):
                self._of[pool.name].append(len(self.groups))
                self.groups.append(Group(pool, tuple(planes)))
        # Each plane is a layer of the store. Planes are in the order of SGLang's layers.
        ranked = sorted((p.layer, g, i) for g, group in enumerate(self.groups) for i, p in enumerate(group.planes))
        self._layers = [layer for layer, _, _ in ranked]
        of_group: list[list[int]] = [[] for _ in self.groups]
        for number, (_, g, _) in enumerate(ranked):
            of_group[g].append(number)
        config = configure(self.groups, of_group)
        self._placed = bool(config["store"].get("remote"))
        self.store = opened(Store, config, logger)
        try:
            self.cache = PagedCache(self.store, groups=[g.memory() for g in self.groups])
        except BaseException:
            self.store.close(wait_seconds)
            raise

    def reset(self) -> None:
        """Make all stored pages misses for this process: the engine's weights may have changed."""
        self.leases.clear("reset")
        self._resets += 1
        self._salt = hashlib.sha256(self._nonce + self._resets.to_bytes(8, "big")).digest()

    def close(self) -> None:
        """Wait for running work, write pending blocks to files and close the store."""
        self.leases.clear("closed")
        self.writes.finish(self.wait_seconds)
        self.store.close(self.wait_seconds)

    def stats(self) -> dict[str, Any]:
        """Return the store's counters, the failures and the counts of leases."""
        self.writes.poll()
        return {
            **self.store.stats(),
            "failures": dict(self.failures.counts),
            "not_written": dict(self.writes.counts),
            "sglang_leases": self.leases.stats(),
        }

    def batch(self, parts: Sequence[Part], before: str | None = None) -> Batch:
        """Return the keys of parts, part by part and page by page.

        before: the hash of the page before the first page of the first part.
        """
        raw, anchors = bytearray(), bytearray()
        pages: list[int] = []
        entries: list[tuple[int, int]] = []
        salt = self._salt
        for number, part in enumerate(parts):
            hashes = b"".join(digest(h, salt) for h in part.hashes)
            each = [self.store.keys(hashes, g, HASH_BYTES) for g in self._of[part.pool]]
            home = self.store.keys(hashes, 0, HASH_BYTES) if self._placed else Keys()
            for i in range(len(part.hashes)):
                raw += b"".join(keys[i] for keys in each)
                anchors += (home[i] if self._placed else b"") * len(each)
                pages += [page for page in part.pages[i : i + 1] for _ in each]
                entries += [(number, i)] * len(each)
        end = None if before is None else self.store.keys(digest(before, salt), self._of[parts[0].pool][-1], HASH_BYTES)[0]
        if self._placed:  # SGLang does not pass where its pages are in a prompt, so each is placed by itself
            self.store.set_anchors(Keys(raw), Keys(anchors))
        return Batch(Keys(raw), pages, entries, parts, end)

    def there(self, parts: Sequence[Part]) -> list[list[bool]]:
        """Report which pages are present. They may be evicted later; keep prevents that."""
        batch = self.batch(parts)
        try:
            found = self.store.lookup(batch.keys, min(LOOKUP_SECONDS, self.wait_seconds))
        except _FATAL:
            raise
        except errors.Error as e:
            self.failures.add("look for", type(e).__name__, len(batch.keys), str(e))
            found = bytes(len(batch.keys))
        return batch.answers([bool(b) for b in found])

    def keep(self, name: str, parts: Sequence[Part]) -> None:
        """Lease present pages for a later load, under a name.

        The new lease replaces an earlier one of the same name. leases.release(name) ends it;
        otherwise it expires. A failure is counted, and the load may then find fewer pages.
        """
        self.leases.release(name, "replaced")
        batch = self.batch(parts)
        if not batch.keys:
            return
        try:
            lease = self.store.lease(batch.keys, SECONDS, min(LOOKUP_SECONDS, self.wait_seconds))
        except _FATAL:
            raise
        except errors.Error as e:
            self.failures.add("lease", type(e).__name__, len(batch.keys), str(e))
            return
        if lease.found < len(batch.keys):
            self.leases.counts["pages_not_held"] += len(batch.keys) - lease.found
        self.leases.keep(name, lease)

    def load(
        self,
        parts: Sequence[Part],
        on_layer: Callable[[int], None] | None = None,
        cache: PagedCache | None = None,
        before: str | None = None,
    ) -> list[list[bool]]:
        """Load pages into the pools, or into another cache. Returns after the last write to them.

        on_layer is called with each of SGLang's layers, in order, once the layer is in all pages.
        It is not called after a page has failed. before: as for batch.
        """
        batch = self.batch(parts, before)
        if not batch.keys:
            return batch.answers([])
        try:
            task = self.store.load(
                cache or self.cache, batch.keys, batch.pages, layerwise=on_layer is not None, before=batch.before
            )
        except _FATAL:
            raise
        except errors.Error as e:
            return batch.answers(self._none("load", batch, e))
        deadline = time.monotonic() + self.wait_seconds
        try:
            if on_layer is not None:
                for layer in range(self._layers[-1] + 1):
                    last = bisect_right(self._layers, layer) - 1
                    if last >= 0:
                        task.wait_layer(last, max(0.0, deadline - time.monotonic()))
                    on_layer(layer)
            task.wait(max(0.0, deadline - time.monotonic()))
        except errors.Error:
            pass  # the results report it
        finally:
            self._quiesce(task)
        return batch.answers(self._results("load", task, (Status.OK,)))

    def dump(
        self, parts: Sequence[Part], cache: PagedCache | None = None, *, written: bool = False, before: str | None = None
    ) -> list[list[bool]]:
        """Store pages. Returns when the pages may be changed and lookups find them.

        Files are written later. Pages that cannot be written are counted and stay in memory.
        before: as for batch.

        written: also wait until files are written, at most wait_seconds. The result is False for
        pages that could not be written.
        """
        batch = self.batch(parts, before)
        if not batch.keys:
            return batch.answers([])
        try:
            task = self.store.dump(cache or self.cache, batch.keys, batch.pages, before=batch.before)
        except _FATAL:
            raise
        except errors.Error as e:
            return batch.answers(self._none("store", batch, e))
        end = time.monotonic() + self.wait_seconds
        try:
            task.published(self.wait_seconds)
            if not (written and task.wait(max(0.0, end - time.monotonic()))):
                self.writes.add(task)
                return batch.answers([True] * len(batch.keys))
        except errors.Error:
            self._quiesce(task)
        return batch.answers(self._results("store", task, STORED))

    def _quiesce(self, task: Load | Dump) -> None:
        """Wait until the task no longer uses its memory.

        A load is cancelled at once, a dump after wait_seconds.
        """
        if not task.wait(0 if isinstance(task, Load) else self.wait_seconds):
            task.cancel()
            task.wait()

    def _none(self, what: str, batch: Batch, e: errors.Error) -> list[bool]:
        self.failures.add(what, type(e).__name__, len(batch.keys), str(e))
        return [False] * len(batch.keys)

    def _results(self, what: str, task: Load | Dump, good: tuple[Status, ...]) -> list[bool]:
        statuses = [r.status for r in task.results()]
        for status, n in Counter(s for s in statuses if s not in good).items():
            self.failures.add(what, status.name, n)
        if isinstance(task, Dump):
            self.writes.note_left_out(task, sum(s not in good for s in statuses))
        return [s in good for s in statuses]


class Staging:
    """Memory for one page of every pool. Use it from one thread at a time.

    The planes of the page of `pool` are contiguous.
    """

    def __init__(self, pages: Pages, pool: str) -> None:
        self.size = sum(p.size for p in pages.pools[pool].planes)
        self._memory = (ctypes.c_char * sum(p.size for each in pages.pools.values() for p in each.planes))()
        self._address = end = ctypes.addressof(self._memory)
        where: dict[int, int] = {}  # offset of each plane, by the plane's address
        for each in sorted(pages.pools.values(), key=lambda p: p.name != pool):
            for plane in each.planes:
                where[plane.address] = end
                end += plane.size
        self.cache = PagedCache(
            pages.store,
            groups=[
                Addresses([where[p.address] for p in g.planes], 1, g.page_bytes, g.page_bytes, keep=self._memory)
                for g in pages.groups
            ],
        )

    def write(self, tensor: Any) -> None:
        """Copy a page from a tensor in the process's memory."""
        tensor = tensor.contiguous()
        ctypes.memmove(self._address, self._check(tensor), self.size)

    def read(self, tensor: Any) -> None:
        """Copy the page to a tensor."""
        ctypes.memmove(self._check(tensor), self._address, self.size)

    def _check(self, tensor: Any) -> int:
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.numel() * tensor.element_size() != self.size:
            raise errors.Invalid(
                f"a tensor of {tensor.numel() * tensor.element_size()} bytes on {tensor.device}, and a page has {self.size}, "
                "in one piece in the process's memory"
            )
        return int(tensor.data_ptr())
