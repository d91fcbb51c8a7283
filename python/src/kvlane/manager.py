"""The index of blocks that stores in other processes have, for engines whose scheduler and workers are processes of their own.

The scheduler has a Manager, which needs no device and moves nothing; each worker has a Store. The scheduler's jobs travel to the
workers as hashes, from which each worker makes the keys of its own rank, and are carried out in the order in which they were
made: docs/library.md, "Separate scheduler and worker processes".
"""

from __future__ import annotations

import array
import ctypes as c
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _config, _lib, errors
from .errors import Status

if TYPE_CHECKING:
    from types import TracebackType

ABSENT, UNDER_WAY, THERE, BELOW = 0, 1, 2, 3


class Block(NamedTuple):
    """What a block is called: the hash of its tokens, and its page group."""

    hash: bytes
    group: int = 0


class _Names:
    """Blocks as the library takes them."""

    def __init__(self, blocks: Sequence[Block], size: int) -> None:
        self.n = len(blocks)
        self.hashes = b"".join(b.hash for b in blocks)
        self.size = size
        if any(len(b.hash) != self.size for b in blocks):
            raise errors.Invalid(f"hashes of other lengths than {size} bytes")
        try:
            self.groups = array.array("I", (b.group for b in blocks)) if any(b.group for b in blocks) else None
        except (OverflowError, TypeError) as e:
            raise errors.Invalid(f"page groups: {e}") from e
        groups = None if self.groups is None else c.cast(_lib.address(self.groups, "page groups")[0], c.POINTER(c.c_uint32))
        self.raw = _lib.Blocks(groups, c.cast(c.c_char_p(self.hashes), c.c_void_p), self.size, self.n)

    def __len__(self) -> int:
        return self.n


class Job(_lib.Owned):
    """What all workers do for some blocks: `blocks`, after they have dropped `evicted` from their memory (Store.drop)."""

    def __init__(self, handle: int, blocks: Sequence[Block], size: int) -> None:
        self._handle, self.blocks = handle, list(blocks)
        lib = _lib.library()
        n, gone = c.c_size_t(), c.c_size_t()
        lib.call("job_size", handle, c.byref(n), c.byref(gone))
        self.evicted: list[Block] = []
        if gone.value:
            groups, hashes = array.array("I", bytes(4 * gone.value)), bytearray(size * gone.value)
            lib.call("job_evicted", handle, _lib.address(groups, "")[0], _lib.address(hashes, "")[0], size, gone.value)
            raw = bytes(hashes)
            self.evicted = [Block(raw[i * size : (i + 1) * size], g) for i, g in enumerate(groups)]

    def end(self, failed: Sequence[int] = ()) -> None:
        """Says that every worker is through with it. Blocks at the places in `failed` some worker could not store or load:
        they are forgotten. Once only: later calls do nothing.
        """
        handle = self._handle
        if not handle:
            return
        bad = bytearray(len(self.blocks))
        for i in failed:
            bad[_lib.number(i, "place in a job", most=len(bad) - 1)] = 1
        raw = _lib.address(bad, "results")[0] if failed else None
        _lib.library().call("job_end", handle, raw, len(bad))
        self._handle = 0


class Manager(_lib.Owned):
    """The index of what all workers' stores have: `ranks` are the configurations of their Stores, and `blocks` how many each
    worker's memory may be given (None: as many as fit, less a sixteenth). metrics_addr is where its metrics are served. Safe from
    any thread.
    """

    def __init__(self, ranks: Sequence[Mapping[str, Any]], blocks: int | None = None, metrics_addr: str | None = None) -> None:
        config: dict[str, Any] = {"ranks": [dict(r) for r in ranks]}
        if blocks is not None:
            config["blocks"] = blocks
        if metrics_addr:
            config["metrics_addr"] = metrics_addr
        self._lib = _lib.library()
        handle = c.c_uint64()
        self._lib.call("open_manager", _config.encode(config).encode(), c.byref(handle))
        self._handle, self._closed = handle.value, False
        self._hash_bytes = 0  # of all blocks, once one was stored

    def _names(self, blocks: Sequence[Block]) -> _Names:
        return _Names(blocks, self._hash_bytes or (len(blocks[0].hash) if blocks else _lib.HASH_BYTES))

    def lookup(self, blocks: Sequence[Block]) -> bytes:
        """A byte for each block: ABSENT, UNDER_WAY (a job that has not ended stores or brings it), THERE in all memories,
        or BELOW: there, in files. Files that have not answered in a second, or since, have nothing; stats() counts the blocks
        (overdue).
        """
        names = self._names(blocks)
        states = bytearray(len(names))
        if blocks:
            status = self._lib.status("manager_lookup", self._handle, c.byref(names.raw), _lib.address(states, "answers")[0])
            if status not in (Status.OK, Status.BUSY):
                raise self._lib.error(status)
        return bytes(states)

    def worth(self, blocks: Sequence[Block], states: bytes, tokens: int) -> int:
        """How many of the blocks, of one page group and from the first on, are worth loading, as that is faster than computing
        them again: the others are best taken for misses. states is what lookup said, tokens how many need not be computed where
        all are loaded. All blocks, until it is known what jobs that load take and, by computed, what computing does.
        """
        names, out = self._names(blocks), c.c_size_t()
        if len(states) != len(names):
            raise errors.Invalid(f"{len(states)} states of {len(names)} blocks")
        if blocks:
            self._lib.call(
                "manager_worth", self._handle, c.byref(names.raw), bytes(states), _lib.number(tokens, "tokens"), c.byref(out)
            )
        return out.value

    def computed(self, tokens: int, seconds: float) -> None:
        """Tells that the KV of so many tokens was computed in that time. Fewer than 256 are passed over."""
        self._lib.call("manager_computed", self._handle, _lib.number(tokens, "tokens"), seconds)

    def load(self, blocks: Sequence[Block]) -> Job:
        """Pins blocks, all THERE or BELOW, for workers to load. NotFound or Busy otherwise: then nothing is pinned."""
        names = self._names(blocks)
        job = c.c_uint64()
        self._lib.call("manager_load", self._handle, c.byref(names.raw), c.byref(job))
        return Job(job.value, blocks, names.size)

    def store(self, blocks: Sequence[Block], before: Block | None = None) -> Job:
        """Makes space for the blocks that are neither in memory nor being stored: the job's blocks. Busy if there is no space.
        The blocks are in the order of a prompt: the last is evicted first. before: the block before the first, if any.
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
        """Makes misses of blocks that a worker found wrong."""
        names = self._names(blocks)
        self._lib.call("manager_forget", self._handle, c.byref(names.raw))

    def touch(self, blocks: Sequence[Block]) -> None:
        """Says that blocks are in use, so that others are evicted before them."""
        names = self._names(blocks)
        self._lib.call("manager_touch", self._handle, c.byref(names.raw))

    def reset(self) -> None:
        """Forgets what is in the workers' memory and in no job. Files stay."""
        self._lib.call("manager_reset", self._handle)

    def stats(self) -> dict[str, Any]:
        """What it has done so far."""
        return dict(self._lib.json("manager_stats", self._handle))

    def metrics(self) -> str:
        """The manager's metrics in Prometheus's text format."""
        return self._lib.text("metrics", self._handle).decode(errors="replace")

    def close(self, timeout: float | None = None) -> None:
        """Refuses new jobs, and closes. Busy while jobs have not ended: then it may be called again."""
        if not self._closed:
            with suppress(errors.Closed):  # a call that was interrupted has closed it meanwhile
                self._lib.finish("close_manager", self._handle, timeout)
            self._closed = True

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
