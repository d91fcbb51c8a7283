"""Index of the blocks in the stores of other processes, for engines with separate workers.

The scheduler has a Manager, which needs no device and moves no data. Each worker has a Store. The
scheduler sends its jobs to the workers as hashes. Each worker makes the keys of its own rank from
them, and runs the jobs in the order of their creation. See docs/library.md, "Separate scheduler and
worker processes".
"""

from __future__ import annotations

import array
import ctypes as c
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _config, _lib, errors
from .errors import Status
from .keys import Keys

if TYPE_CHECKING:
    from types import TracebackType

ABSENT, UNDER_WAY, THERE, BELOW, REMOTE = 0, 1, 2, 3, 4


class Block(NamedTuple):
    """Name of a block: the hash of its tokens, and its page group."""

    hash: bytes
    group: int = 0


class _Names:
    """Blocks in the library's format."""

    def __init__(self, blocks: Sequence[Block], size: int) -> None:
        self.n = len(blocks)
        self.hashes = b"".join(b.hash for b in blocks)
        self.size = size
        if any(len(b.hash) != self.size for b in blocks):
            raise errors.Invalid(f"hashes must all have {size} bytes")
        try:
            self.groups = array.array("I", (b.group for b in blocks)) if any(b.group for b in blocks) else None
        except (OverflowError, TypeError) as e:
            raise errors.Invalid(f"page groups: {e}") from e
        groups = None if self.groups is None else c.cast(_lib.address(self.groups, "page groups")[0], c.POINTER(c.c_uint32))
        self.raw = _lib.Blocks(groups, c.cast(c.c_char_p(self.hashes), c.c_void_p), self.size, self.n)

    def __len__(self) -> int:
        return self.n


class Job(_lib.Owned):
    """A load or store of `blocks` by all workers.

    Before the job, each worker drops the blocks `evicted` from memory (Store.drop). It runs a load
    with promote=not `direct`. If `anchors` is not None, each worker first sets them for its keys of
    `blocks` (Store.set_anchors). They are the same for the workers of all ranks.
    """

    def __init__(self, handle: int, blocks: Sequence[Block], size: int) -> None:
        self._handle, self.blocks = handle, list(blocks)
        lib = _lib.library()
        n, gone = c.c_size_t(), c.c_size_t()
        lib.call("job_size", handle, c.byref(n), c.byref(gone))
        direct = bytearray(1)
        lib.call("job_direct", handle, _lib.address(direct, "")[0])
        self.direct = bool(direct[0])
        self.evicted = self._read_evicted(size, gone.value)
        self.anchors = self._read_anchors(n.value)

    def _read_evicted(self, size: int, n: int) -> list[Block]:
        if not n:
            return []
        groups, hashes = array.array("I", bytes(4 * n)), bytearray(size * n)
        _lib.library().call("job_evicted", self._handle, _lib.address(groups, "")[0], _lib.address(hashes, "")[0], size, n)
        raw = bytes(hashes)
        return [Block(raw[i * size : (i + 1) * size], g) for i, g in enumerate(groups)]

    def _read_anchors(self, n: int) -> Keys | None:
        if not n:
            return None
        lib = _lib.library()
        raw = bytearray(n * _lib.KEY_BYTES)
        status = lib.status("job_anchors", self._handle, _lib.address(raw, "")[0], n)
        if status == Status.NOT_FOUND:
            return None
        if status != Status.OK:
            raise lib.error(status)
        return Keys(raw)

    def loaded(self, seconds: float, wait: float = 0) -> None:
        """Report the times of a job that loads, before its end.

        seconds is the duration of the slowest worker's load (Load.seconds). wait is the time from
        the decision to load to the use of the blocks, without the time in which other requests were
        computed, or 0 if unknown.
        """
        if self._handle:
            _lib.library().call("job_loaded", self._handle, seconds, wait)

    def end(self, failed: Sequence[int] = (), pooled: Sequence[int] = ()) -> None:
        """End the job after every worker has finished it. Later calls do nothing.

        `failed` holds the indices of blocks that a worker could not store or load. The Manager
        forgets them. `pooled` holds the indices of blocks of a direct job that are in a worker's
        memory. The workers drop them before the next job.
        """
        handle = self._handle
        if not handle:
            return
        bad = bytearray(len(self.blocks))
        for i in failed:
            bad[_lib.number(i, "place in a job", most=len(bad) - 1)] = 1
        for i in pooled:
            bad[_lib.number(i, "place in a job", most=len(bad) - 1)] |= 2
        raw = _lib.address(bad, "results")[0] if failed or pooled else None
        _lib.library().call("job_end", handle, raw, len(bad))
        self._handle = 0


class Manager(_lib.Owned):
    """Index of the blocks in the stores of all workers. Safe from any thread.

    `ranks` are the configurations of the workers' Stores. `blocks` is the number of blocks that
    each worker's memory may hold (None: fifteen sixteenths of its slots). metrics_addr is the
    address that serves the metrics. direct: all workers use direct storage; the manager may then
    create direct jobs.
    """

    def __init__(
        self,
        ranks: Sequence[Mapping[str, Any]],
        blocks: int | None = None,
        metrics_addr: str | None = None,
        *,
        direct: bool = False,
    ) -> None:
        config: dict[str, Any] = {"ranks": [dict(r) for r in ranks]}
        if direct:
            config["direct"] = True
        if blocks is not None:
            config["blocks"] = blocks
        if metrics_addr:
            config["metrics_addr"] = metrics_addr
        self._lib = _lib.library()
        handle = c.c_uint64()
        self._lib.call("open_manager", _config.encode(config).encode(), c.byref(handle))
        self._handle, self._closed = handle.value, False
        self._hash_bytes = 0  # of all blocks; set by the first store

    def _names(self, blocks: Sequence[Block]) -> _Names:
        return _Names(blocks, self._hash_bytes or (len(blocks[0].hash) if blocks else _lib.HASH_BYTES))

    def lookup(self, blocks: Sequence[Block]) -> bytes:
        """Return a byte for each block: ABSENT, UNDER_WAY, THERE, BELOW or REMOTE.

        UNDER_WAY: an unfinished job stores or loads the block. THERE: it is in the memory of all
        workers. BELOW: it is in files. REMOTE: it is in block servers. If files or servers do not
        answer within a second, their blocks are absent; stats() counts them (overdue). The first
        block is the first of a prompt, unless set_anchors has set its anchor.
        """
        names = self._names(blocks)
        states = bytearray(len(names))
        if blocks:
            status = self._lib.status("manager_lookup", self._handle, c.byref(names.raw), _lib.address(states, "answers")[0])
            if status not in (Status.OK, Status.BUSY):
                raise self._lib.error(status)
        return bytes(states)

    def worth(self, blocks: Sequence[Block], states: bytes, tokens: int, rest: int = 0) -> int:
        """Return how many of the blocks, from the first on, are faster to load than to compute.

        Treat the rest as misses. The blocks are of one page group, and states is the result of
        lookup. tokens is the number of tokens that need not be computed if all blocks are loaded.
        rest is the number that is computed in any case at the same time: the other tokens of the
        request, and those of other requests. Returns all blocks until the durations of loading
        (Job.loaded) and of computing (computed) are known.
        """
        names, out = self._names(blocks), c.c_size_t()
        if len(states) != len(names):
            raise errors.Invalid(f"{len(states)} states of {len(names)} blocks")
        if blocks:
            self._lib.call(
                "manager_worth", self._handle, c.byref(names.raw), bytes(states), _lib.number(tokens, "tokens"),
                _lib.number(rest, "rest"), c.byref(out),
            )  # fmt: skip
        return out.value

    def computed(self, tokens: int, seconds: float) -> None:
        """Report that computing the KV of `tokens` tokens took `seconds`.

        Reports of fewer than 256 tokens give the least time of a step.
        """
        self._lib.call("manager_computed", self._handle, _lib.number(tokens, "tokens"), seconds)

    def load(self, blocks: Sequence[Block]) -> Job:
        """Pin blocks for workers to load. The state of each must be THERE, BELOW or REMOTE.

        Otherwise raises NotFound or Busy, and pins no block.
        """
        names = self._names(blocks)
        job = c.c_uint64()
        self._lib.call("manager_load", self._handle, c.byref(names.raw), c.byref(job))
        return Job(job.value, blocks, names.size)

    def store(self, blocks: Sequence[Block], before: Block | None = None) -> Job:
        """Reserve space for the blocks that are neither in memory nor being stored.

        They form the job. Raises Busy if there is no space. Give the blocks in the order of the
        prompt: the last is evicted first. before: the block before the first, if any.
        """
        names = self._names(blocks)
        earlier = None if before is None else _Names([before], names.size)
        job, chosen = c.c_uint64(), bytearray(len(names))
        raw = _lib.address(chosen, "choices")[0]
        first = None if earlier is None else c.byref(earlier.raw)
        self._lib.call("manager_store", self._handle, c.byref(names.raw), first, raw, c.byref(job))
        if blocks:
            self._hash_bytes = names.size
        return Job(job.value, [b for b, k in zip(blocks, chosen, strict=True) if k], names.size)

    def forget(self, blocks: Sequence[Block]) -> None:
        """Mark blocks as misses that a worker found corrupt."""
        names = self._names(blocks)
        self._lib.call("manager_forget", self._handle, c.byref(names.raw))

    def touch(self, blocks: Sequence[Block]) -> None:
        """Mark blocks as used, so that others are evicted before them."""
        names = self._names(blocks)
        self._lib.call("manager_touch", self._handle, c.byref(names.raw))

    def set_anchors(self, blocks: Sequence[Block], anchors: Sequence[Block]) -> None:
        """Set the anchor of each block, as Store.set_anchors does for keys."""
        names, of = self._names(blocks), self._names(anchors)
        self._lib.call("manager_set_anchors", self._handle, c.byref(names.raw), c.byref(of.raw))

    def reset(self) -> None:
        """Forget blocks that are in the workers' memory and in no job. Files stay."""
        self._lib.call("manager_reset", self._handle)

    def stats(self) -> dict[str, Any]:
        """Return the manager's counters since it was opened."""
        return dict(self._lib.json("manager_stats", self._handle))

    def metrics(self) -> str:
        """Return the manager's metrics in Prometheus's text format."""
        return self._lib.text("metrics", self._handle).decode(errors="replace")

    def close(self, timeout: float | None = None) -> None:
        """Refuse new jobs and close.

        Raises Busy while jobs have not ended; then it may be called again.
        """
        if not self._closed:
            with suppress(errors.Closed):  # an interrupted call has closed it meanwhile
                self._lib.finish("close_manager", self._handle, timeout)
            self._closed = True

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
