"""The scheduler's side: vLLM's OffloadingManager over kvlane's Manager, which knows what blocks the workers have."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from .. import errors
from ..manager import BELOW, THERE, Block
from .jobs import GROUP_BYTES, Blocks

if TYPE_CHECKING:
    from ..manager import Job, Manager

logger = init_logger("vllm.kvlane")  # what vLLM sets up are loggers below its own name

_RESULTS = (LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.HIT, LookupResult.HIT)


def _block(name: bytes) -> Block:
    return Block(name[:-GROUP_BYTES], int.from_bytes(name[-GROUP_BYTES:], "big"))


def _named(blocks: Iterable[Block]) -> list[bytes]:
    return [b.hash + b.group.to_bytes(GROUP_BYTES, "big") for b in blocks]


def _in_order(keys: Iterable[OffloadKey], context: ReqContext) -> list[OffloadKey]:
    """Keys of a request in the order of its prompt, of all page groups by their tokens."""
    positions = context._offload_key_positions
    return sorted(keys, key=lambda k: (positions.get(k, 0), k[-GROUP_BYTES:]))


class Scheduler(OffloadingManager):
    """vLLM's scheduler calls it, in one thread. A block that is not there raises nothing: it is a miss, now or at the worker.

    block_tokens is that of the only page group; 0 where there are several, whose prefixes end in places of their own. It is to be
    opened before the first step.
    """

    def __init__(self, group_ids: tuple[int, ...], events: bool, log_seconds: float, block_tokens: int = 0) -> None:
        self._manager: Manager | None = None
        self._block_tokens = block_tokens
        self._groups = {g: i.to_bytes(GROUP_BYTES, "big") for i, g in enumerate(group_ids)}
        self._same = list(group_ids) == list(range(len(group_ids)))
        self._salt = b""  # set by reset_cache
        self._seen: dict[str, dict[OffloadKey, int]] = {}  # by request: what Manager.lookup said in this step
        self._loads: dict[str, Job | None] = {}  # by request, which has one at a time
        self._stores: dict[OffloadKey, Job] = {}  # by each key of a job
        self._owed: list[bytes] = []  # evicted, and no worker was told yet
        self._failed: set[bytes] = set()  # of jobs that some worker is not through with
        self._events: list[OffloadingEvent] | None = [] if events else None
        self._told: dict[bytes, OffloadKey] = {}  # vLLM's keys of what events have said is there, by name
        self._log_seconds, self._logged = log_seconds, 0.0

    def open(self, manager: Manager) -> None:
        """Gives it the Manager, which it will close."""
        self._manager = manager

    @property
    def manager(self) -> Manager:
        """The index of the workers' blocks. NotSupported before open."""
        if self._manager is None:
            raise errors.NotSupported("vLLM has not passed on what its workers tell of their kernels (get_handshake_metadata)")
        return self._manager

    def _name(self, key: OffloadKey) -> bytes:
        if self._same and not self._salt:
            return bytes(key)
        name = bytes(key[:-GROUP_BYTES])
        if self._salt:
            name = hashlib.blake2b(name, digest_size=min(len(name), 64), key=self._salt).digest()
        return name + self._groups[int.from_bytes(key[-GROUP_BYTES:], "big")]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """One call to the Manager for all keys of a request, in each step."""
        seen = self._seen.get(req_context.req_id)
        if seen is None or key not in seen:
            keys = _in_order(req_context._offload_key_positions, req_context)
            if key not in req_context._offload_key_positions:
                keys.append(key)
            blocks = [_block(self._name(k)) for k in keys]
            try:
                found = self._admitted(blocks, self.manager.lookup(blocks), keys.index(key))
            except errors.Error as e:
                logger.warning("Request %s: %d blocks are taken for misses: %s", req_context.req_id, len(keys), e)
                found = bytes(len(keys))
            seen = dict(zip(keys, found, strict=True))
            self._seen[req_context.req_id] = seen
        return _RESULTS[seen[key]]

    def _admitted(self, blocks: list[Block], states: bytes, first: int) -> bytes:
        """The states, with misses where blocks in files are computed faster than they are loaded. first is what vLLM asks for
        first: it has those before.
        """
        end = first
        while end < len(states) and states[end] in (THERE, BELOW):
            end += 1
        if not self._block_tokens or BELOW not in states[first:end]:
            return states
        worth = self.manager.worth(blocks[first:end], states[first:end], (end - first) * self._block_tokens)
        return states[: first + worth] + bytes(end - first - worth) + states[end:]

    def in_files(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> bool:
        """Whether one of the keys that a request was told of in this step has its block in files, and not in all pools."""
        seen = self._seen.get(req_context.req_id, {})
        return any(seen.get(key) == BELOW for key in keys)

    def computed(self, tokens: int, seconds: float) -> None:
        """The engine has computed that many tokens in that time."""
        self.manager.computed(tokens, seconds)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Blocks:
        """Pins the blocks. Where that fails the workers are told all the same, and report what they do not have."""
        names = [self._name(k) for k in keys]
        job: Job | None = None
        try:
            job = self.manager.load([_block(n) for n in names])
        except errors.Error as e:
            logger.warning("Request %s: %d blocks are loaded unpinned: %s", req_context.req_id, len(names), e)
        self._loads[req_context.req_id] = job
        self._changed()
        evicted = _named(job.evicted) if job else []
        self._removed(evicted)
        return Blocks(names, self._drop(evicted))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Every worker is through with a request's load."""
        job = self._loads.pop(req_context.req_id, None)
        self._end(job, keys)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """None where there is no room: everything is in use."""
        named = {self._name(k): k for k in keys}
        ordered = _in_order(named.values(), req_context)
        before = self._before(ordered, req_context)
        try:
            job = self.manager.store([_block(self._name(k)) for k in ordered], None if before is None else _block(before))
        except errors.Busy:
            return None
        except errors.Error as e:
            logger.warning("Request %s: %d blocks are not stored: %s", req_context.req_id, len(named), e)
            return None
        self._changed()
        evicted = _named(job.evicted)
        self._removed(evicted)
        chosen = set(_named(job.blocks))
        names = [n for n in named if n in chosen]  # in vLLM's order, in which it will name the pages
        taken = [named[n] for n in names]
        if not taken:  # vLLM makes no job of it, so the next one tells the workers
            self._owed += evicted
            job.end()
            return PrepareStoreOutput([], Blocks([], []), [])
        for k in taken:
            self._stores[k] = job
        before = self._before(_in_order(taken, req_context), req_context)
        return PrepareStoreOutput(taken, Blocks(names, self._drop(evicted), before=before), [])

    def _before(self, keys: list[OffloadKey], req_context: ReqContext) -> bytes | None:
        """The name of the block before the first of a request's keys, if there is one of the same page group. Requests store
        their last blocks, so it looks from the end.
        """
        earlier = reversed(req_context._offload_key_positions)
        if not keys or keys[0] not in earlier:  # reads up to the key
            return None
        before = next(earlier, None)
        return self._name(before) if before is not None and before[-GROUP_BYTES:] == keys[0][-GROUP_BYTES:] else None

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """Every worker is through with a job."""
        jobs = {id(j): j for k in keys if (j := self._stores.pop(k, None)) is not None}
        stored = {n: k for k in keys if success and (n := self._name(k)) not in self._failed}
        if self._events is not None and stored:
            self._told |= stored
            self._events.append(OffloadingEvent(list(stored.values()), Medium.CPU, removed=False))
        for job in jobs.values():
            self._end(job, keys, success)

    def _end(self, job: Job | None, keys: Collection[OffloadKey], success: bool = True) -> None:
        failed = {n for n in map(self._name, keys) if n in self._failed or not success}
        self._failed -= failed
        self._changed()
        self._removed(failed)
        if job is not None:
            job.end([i for i, n in enumerate(_named(job.blocks)) if n in failed])
        elif failed:
            self.manager.forget([_block(n) for n in failed])
        if (now := time.monotonic()) - self._logged >= self._log_seconds:
            self._logged = now
            logger.info("kvlane: %s", json.dumps(self.stats()))

    def failed(self, names: Iterable[bytes]) -> None:
        """A worker could not store or load these blocks, of a job that has not ended."""
        self._failed.update(names)

    def _removed(self, names: Iterable[bytes]) -> None:
        """Tells of blocks that are in the workers' memory no more."""
        keys = [key for n in names if (key := self._told.pop(n, None)) is not None]
        if self._events is not None and keys:
            self._events.append(OffloadingEvent(keys, Medium.CPU, removed=True))

    def _drop(self, evicted: list[bytes]) -> list[bytes]:
        """What the workers drop before a job, which is the next that they get."""
        out, self._owed = [*self._owed, *evicted], []
        return out

    def _changed(self) -> None:
        self._seen.clear()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Nothing is known of a request yet."""
        return RequestOffloadingContext()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """What lookups said counts for one step."""
        self._changed()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored and removed since the last call."""
        if self._events:
            taken, self._events = self._events, []
            yield from taken

    def reset_cache(self) -> None:
        """Nothing that was stored so far is found again by this process: the engine may have got other weights."""
        self._salt = os.urandom(32)
        for job in [*self._loads.values(), *{id(j): j for j in self._stores.values()}.values()]:
            if job is not None:
                job.end(range(len(job.blocks)))
        self._loads.clear()
        self._stores.clear()
        self._failed.clear()
        self._removed(list(self._told))
        self._changed()

    def stats(self) -> dict[str, Any]:
        """The Manager's figures."""
        return self.manager.stats()

    def metrics(self) -> str:
        """The Manager's metrics."""
        return self.manager.metrics()

    def shutdown(self) -> None:
        """Closes the Manager."""
        if self._manager is None:
            return
        logger.info("kvlane: %s", json.dumps(self.stats()))
        self.reset_cache()  # ends jobs that no worker answers for any more
        self.manager.close()
