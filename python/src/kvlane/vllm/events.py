"""KV events of blocks in the tiers below the workers' memory.

Each worker has a Recorder of its store's changes, and sends them to the scheduler with the results
of a step. The scheduler's Below makes vLLM's events from them: a block is stored in a tier when all
ranks have their part there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent, OffloadKey

from ..keys import Keys
from ..store import LOST, REMOVED, Store

logger = init_logger("vllm.kvlane")  # vLLM configures only the loggers below its own name

# The medium of each tier in vLLM's events. Blocks in the workers' memory have "CPU".
MEDIA: Mapping[str, str] = {"file": "FILE", "remote": "REMOTE", "object": "OBJECT"}
_SHARED = ("remote", "object")
_RECENT = 1 << 16
_MOST = 1 << 20  # blocks that are reported as stored, for each tier


class Change(NamedTuple):
    """A change in a tier. name is kvlane's name of the block, key vLLM's key."""

    rank: int
    tier: str
    name: bytes
    key: bytes
    stored: bool


class Recorder:
    """Changes of a worker's store below its memory, for blocks that vLLM has named to it."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._recent: dict[bytes, tuple[bytes, bytes]] = {}  # name and vLLM's key, by the store's key
        self._held: dict[str, dict[bytes, tuple[bytes, bytes]]] = {}  # by tier
        store.events()  # begins the recording

    def note(self, keys: Keys, names: Iterable[bytes], vllm_keys: Iterable[bytes]) -> None:
        """Record the names of blocks before they are stored or loaded. The newest 65,536 are kept."""
        raw = keys.raw
        for i, block in enumerate(zip(names, vllm_keys, strict=True)):
            self._recent[raw[32 * i : 32 * (i + 1)]] = block
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def take(self) -> list[Change]:
        """Return the changes since the last call.

        If the store has lost events, its blocks are reported as removed until they are stored again.
        So are the oldest of more than 1,048,576 blocks in a tier: servers, and other processes with
        the same directory, remove blocks without an event.
        """
        out = []
        while events := self._store.events():
            for change, tier, key in events:
                if change == LOST:
                    if any(self._held.values()):
                        logger.warning("kvlane: too many changes between two steps: KV events report blocks as removed")
                    out += [Change(self._rank, t, *block, False) for t, held in self._held.items() for block in held.values()]
                    self._held.clear()
                elif tier in MEDIA:
                    held = self._held.setdefault(tier, {})
                    block = held.pop(key, None) if change == REMOVED else None
                    block = block or self._block(key)
                    if block is not None:
                        if change != REMOVED:
                            held[key] = block
                        out.append(Change(self._rank, tier, *block, change != REMOVED))
                    if len(held) > _MOST:
                        out.append(Change(self._rank, tier, *held.pop(next(iter(held))), False))
        return out

    def _block(self, key: bytes) -> tuple[bytes, bytes] | None:
        if (block := self._recent.get(key)) is not None:
            return block
        return next((block for held in self._held.values() if (block := held.get(key)) is not None), None)


class Below:
    """The blocks in the tiers below the workers' memory, according to the workers' changes.

    ranks is the number of workers that store different parts of a block.
    """

    def __init__(self, ranks: int, tiers: Iterable[str]) -> None:
        self._all = (1 << ranks) - 1
        self._held: dict[str, dict[bytes, tuple[int, OffloadKey]]] = {tier: {} for tier in tiers if tier in MEDIA}
        self._events: list[OffloadingEvent] = []

    def apply(self, changes: Iterable[Change]) -> None:
        """Add the events of changes."""
        for rank, tier, name, key, stored in changes:
            held = self._held[tier]
            had, _ = held.get(name, (0, None))
            now = had | 1 << rank if stored else had & ~(1 << rank)
            self._set(tier, name, OffloadKey(key), had, now)

    def found(self, name: bytes, key: OffloadKey, *, files: bool) -> None:
        """Add an event for a block that the Manager has found in files or else in servers."""
        tier = next((t for t in self._held if (t not in _SHARED) == files), None)
        if tier is not None:
            had, _ = self._held[tier].get(name, (0, None))
            self._set(tier, name, key, had, self._all)

    def gone(self, name: bytes) -> None:
        """Add events for a block that the Manager does not find, or that a worker cannot load."""
        for tier, held in self._held.items():
            if name in held:
                had, key = held[name]
                self._set(tier, name, key, had, 0)

    def reset(self) -> None:
        """Add events for all blocks: vLLM's keys have other names from now on."""
        for tier, held in self._held.items():
            for name, (had, key) in list(held.items()):
                self._set(tier, name, key, had, 0)

    def _set(self, tier: str, name: bytes, key: OffloadKey, had: int, now: int) -> None:
        held = self._held[tier]
        if now:
            held[name] = now, key
        else:
            held.pop(name, None)
        if len(held) > _MOST:
            oldest = next(iter(held))
            self._set(tier, oldest, held[oldest][1], held[oldest][0], 0)
        if (had == self._all) == (now == self._all):
            return
        removed, last = now != self._all, self._events[-1] if self._events else None
        if last is not None and last.ownership == tier and last.removed == removed:
            last.keys.append(key)
            return
        where = Locality.REMOTE if tier in _SHARED else Locality.LOCAL
        self._events.append(OffloadingEvent([key], Medium.STORAGE, removed, where, tier, removal_expected=True))

    def take(self) -> list[OffloadingEvent]:
        """Return the events since the last call, in their order."""
        out, self._events = self._events, []
        return out
