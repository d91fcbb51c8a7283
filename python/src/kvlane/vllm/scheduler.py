"""The scheduler's side: vLLM's OffloadingManager over kvlane's Manager, the index of blocks."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
from ..manager import ABSENT, BELOW, REMOTE, THERE, Block
from .jobs import GROUP_BYTES, Blocks

if TYPE_CHECKING:
    from .._traces import Span, Tracer
    from ..manager import Job, Manager
    from .events import Below, Change

logger = init_logger("vllm.kvlane")  # vLLM configures only the loggers below its own name

_TRACED = 8192
_RESULTS = (LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.HIT, LookupResult.HIT, LookupResult.HIT)


def _block(name: bytes) -> Block:
    return Block(name[:-GROUP_BYTES], int.from_bytes(name[-GROUP_BYTES:], "big"))


def _named(blocks: Iterable[Block]) -> list[bytes]:
    return [b.hash + b.group.to_bytes(GROUP_BYTES, "big") for b in blocks]


def _in_order(keys: Iterable[OffloadKey], context: ReqContext) -> list[OffloadKey]:
    """Return the keys of a request in the order of its prompt.

    Blocks of all page groups are ordered by their tokens.
    """
    positions = context._offload_key_positions
    return sorted(keys, key=lambda k: (positions.get(k, 0), k[-GROUP_BYTES:]))


@dataclass
class _Times:
    """Times of a request's load, in seconds: its start, and the longest durations of workers."""

    begun: float
    busy: float  # time with work of requests, until the start
    files: bool  # some blocks are only in files or block servers
    seconds: float = 0.0
    waited: float = 0.0


class Scheduler(OffloadingManager):
    """Implements vLLM's OffloadingManager. vLLM's scheduler calls it in one thread.

    A block that is absent, or that a worker cannot load, is a miss. block_tokens is that of the only
    page group, or 0 if there are several, because their prefixes end at different tokens. in_steps:
    most hits in memory are loaded within the step that uses them. Call open before the first step.
    """

    def __init__(
        self,
        group_ids: tuple[int, ...],
        events: bool,
        log_seconds: float,
        block_tokens: int = 0,
        in_steps: bool = False,
        *,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._headers: dict[str, Mapping[str, str]] = {}  # trace context by request
        self._spans: dict[str | int, Span] = {}  # by the request of a load, or the id of a store's job
        self._in_steps = in_steps
        self._manager: Manager | None = None
        self._block_tokens = block_tokens
        self._groups = {g: i.to_bytes(GROUP_BYTES, "big") for i, g in enumerate(group_ids)}
        self._same = list(group_ids) == list(range(len(group_ids)))
        self._salt = b""  # set by reset_cache
        # by request: the result of Manager.lookup in this step
        self._seen: dict[str, dict[OffloadKey, int]] = {}
        self._loads: dict[str, Job | None] = {}  # by request; a request has one load at a time
        self._times: dict[str, _Times] = {}  # by request with a load
        self._busy = 0.0  # seconds of earlier steps that computed tokens
        self._computing: float | None = None  # start of the last step, if it computes tokens
        self._others = 0  # tokens of the last step, and of the requests that were looked up since
        self._stores: dict[OffloadKey, Job] = {}  # by each key of a job
        self._pending_drops: list[bytes] = []  # evicted blocks not sent to the workers yet
        self._pooled: set[bytes] = set()  # blocks of direct jobs in the memory of a worker
        self._failed: set[bytes] = set()  # failed blocks of jobs that some worker has not finished
        self._events: list[OffloadingEvent] | None = [] if events else None
        # by name: vLLM's keys of the blocks that events reported as stored
        self._reported: dict[bytes, OffloadKey] = {}
        self._below: Below | None = None
        self._log_seconds, self._logged = log_seconds, 0.0

    def open(self, manager: Manager, below: Below | None = None) -> None:
        """Set the Manager, which shutdown closes, and the index of the tiers below for events."""
        self._manager = manager
        self._below = below if self._events is not None else None

    @property
    def manager(self) -> Manager:
        """The index of the workers' blocks. Raises NotSupported before open."""
        if self._manager is None:
            raise errors.NotSupported("vLLM has not passed on its workers' report of their kernels (get_handshake_metadata)")
        return self._manager

    def _name(self, key: OffloadKey) -> bytes:
        if self._same and not self._salt:
            return bytes(key)
        name = bytes(key[:-GROUP_BYTES])
        if self._salt:
            name = hashlib.blake2b(name, digest_size=min(len(name), 64), key=self._salt).digest()
        return name + self._groups[int.from_bytes(key[-GROUP_BYTES:], "big")]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Look a key up. Each step calls the Manager once for all keys of a request."""
        seen = self._seen.get(req_context.req_id)
        if seen is None or key not in seen:
            keys = _in_order(req_context._offload_key_positions, req_context)
            if key not in req_context._offload_key_positions:
                keys.append(key)
            blocks = [_block(self._name(k)) for k in keys]
            try:
                with self._spanned("lookup", len(keys), req_context):
                    states = self.manager.lookup(blocks)
                    found = self._admitted(blocks, states, keys.index(key))
                self._looked_up(keys, states)
            except errors.Error as e:
                logger.warning("Request %s: %d blocks are taken for misses: %s", req_context.req_id, len(keys), e)
                found = bytes(len(keys))
            seen = dict(zip(keys, found, strict=True))
            self._seen[req_context.req_id] = seen
        return _RESULTS[seen[key]]

    def _looked_up(self, keys: list[OffloadKey], states: bytes) -> None:
        """Correct the index of the tiers below by the result of a lookup."""
        if self._below is None:
            return
        for key, state in zip(keys, states, strict=True):
            if state in (BELOW, REMOTE):
                self._below.found(self._name(key), key, files=state == BELOW)
            elif state == ABSENT:
                self._below.gone(self._name(key))

    def changed(self, changes: Iterable[Change]) -> None:
        """Record changes of workers' tiers. Those of blocks from before reset_cache are ignored."""
        if self._below is not None:
            self._below.apply(c for c in changes if self._name(OffloadKey(c.key)) == c.name)

    def _vllm_keys(self, keys: Iterable[OffloadKey]) -> list[bytes] | None:
        """Return the keys for the workers' events, if they differ from the names."""
        if self._below is None or (self._same and not self._salt):
            return None
        return [bytes(k) for k in keys]

    def _admitted(self, blocks: list[Block], states: bytes, first: int) -> bytes:
        """Return the states, with misses for blocks that compute faster than they load.

        first is the index of the first key that vLLM looks up. vLLM has the blocks before it.
        """
        end = first
        while end < len(states) and states[end] in (THERE, BELOW, REMOTE):
            end += 1
        if not self._block_tokens or end == first:
            return states
        size = self._block_tokens
        rest = (len(states) - end) * size + self._others
        worth = self.manager.worth(blocks[first:end], states[first:end], (end - first) * size, rest)
        self._others += (len(states) - first - worth) * size
        return states[: first + worth] + bytes(end - first - worth) + states[end:]

    def in_files(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> bool:
        """Report whether the last lookup found one of the keys only in files or block servers.

        The block is then not in the memory of all workers.
        """
        seen = self._seen.get(req_context.req_id, {})
        return any(seen.get(key) in (BELOW, REMOTE) for key in keys)

    def scheduled(self, tokens: int) -> None:
        """Record the start of a step with so many tokens."""
        now = time.monotonic()
        self._busy, self._computing, self._others = self._busy_until(now), now if tokens else None, tokens

    def _busy_until(self, now: float) -> float:
        """Return the seconds in which the engine has computed tokens."""
        return self._busy + (0.0 if self._computing is None else now - self._computing)

    def loaded(self, request: str, seconds: float, waited: float) -> None:
        """Record a worker's duration of a request's load, and the time for which its step waited.

        waited is 0 if no step waited for the load.
        """
        if (times := self._times.get(request)) is not None:
            times.seconds, times.waited = max(times.seconds, seconds), max(times.waited, waited)

    def computed(self, tokens: int, seconds: float) -> None:
        """Report that computing `tokens` tokens took `seconds`."""
        self.manager.computed(tokens, seconds)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Blocks:
        """Pin the blocks.

        If that fails, the workers still get the job and report the blocks they do not have.
        """
        names = [self._name(k) for k in keys]
        now = time.monotonic()
        self._times[req_context.req_id] = _Times(now, self._busy_until(now), self.in_files(keys, req_context))
        job: Job | None = None
        try:
            job = self.manager.load([_block(n) for n in names])
        except errors.Error as e:
            logger.warning("Request %s: %d blocks are loaded unpinned: %s", req_context.req_id, len(names), e)
        self._loads[req_context.req_id] = job
        self._begin(req_context.req_id, "load", len(names), req_context)
        self._changed()
        evicted = _named(job.evicted) if job else []
        self._removed(evicted)
        anchors = list(job.anchors) if job and job.anchors else None
        direct = job is not None and job.direct
        return Blocks(names, self._drop(evicted), direct=direct, anchors=anchors, keys=self._vllm_keys(keys))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """End a request's load, which every worker has finished."""
        job, times = self._loads.pop(req_context.req_id, None), self._times.pop(req_context.req_id, None)
        self._end_span(req_context.req_id, failed=any(self._name(k) in self._failed for k in keys) if self._failed else False)
        if job is not None and times is not None and times.seconds:
            wait = times.waited
            if not wait and (times.files or not self._in_steps):
                now = time.monotonic()
                idle = now - times.begun - (self._busy_until(now) - times.busy)
                wait = max(idle, times.seconds)  # the load may be over before other requests are
            job.loaded(times.seconds, wait)
        if job is not None and not job.direct:
            self._entered({n: k for k in keys if (n := self._name(k)) not in self._failed and n not in self._reported})
        if self._below is not None and self._failed:
            for name in self._failed.intersection(map(self._name, keys)):
                self._below.gone(name)
        self._end(job, keys)

    def _entered(self, blocks: Mapping[bytes, OffloadKey]) -> None:
        """Add an event for blocks that are in the workers' memory now."""
        if self._events is not None and blocks:
            self._reported |= blocks
            self._events.append(OffloadingEvent(list(blocks.values()), Medium.CPU, removed=False))

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Reserve space for blocks to store. Returns None if all space is in use."""
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
        names = [n for n in named if n in chosen]  # in vLLM's order, in which it names the pages
        taken = [named[n] for n in names]
        if not taken:  # vLLM creates no job, so the next job carries the evicted blocks
            self._pending_drops += evicted
            job.end()
            return PrepareStoreOutput([], Blocks([], []), [])
        for k in taken:
            self._stores[k] = job
        self._begin(id(job), "dump", len(taken), req_context)
        before = self._before(_in_order(taken, req_context), req_context)
        anchors = None
        if job.anchors:
            of = dict(zip(_named(job.blocks), job.anchors, strict=True))
            anchors = [of[n] for n in names]
        blocks = Blocks(names, self._drop(evicted), before=before, anchors=anchors, keys=self._vllm_keys(taken))
        return PrepareStoreOutput(taken, blocks, [])

    def _before(self, keys: list[OffloadKey], req_context: ReqContext) -> bytes | None:
        """Return the name of the block before the first of a request's keys, or None.

        Both must be of the same page group. Requests store their last blocks, so the search starts
        at the end.
        """
        earlier = reversed(req_context._offload_key_positions)
        if not keys or keys[0] not in earlier:  # consumes the iterator up to the key
            return None
        before = next(earlier, None)
        return self._name(before) if before is not None and before[-GROUP_BYTES:] == keys[0][-GROUP_BYTES:] else None

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """End a store, which every worker has finished."""
        jobs = {id(j): j for k in keys if (j := self._stores.pop(k, None)) is not None}
        stored = {n: k for k in keys if success and (n := self._name(k)) not in self._failed}
        self._entered(stored)
        for job in jobs.values():
            self._end_span(id(job), failed=len(stored) < len(keys))
            self._end(job, keys, success)

    def _end(self, job: Job | None, keys: Collection[OffloadKey], success: bool = True) -> None:
        names = {self._name(k) for k in keys} if self._failed or self._pooled or not success else set()
        failed = {n for n in names if n in self._failed or not success}
        pooled = names & self._pooled
        self._failed -= failed
        self._pooled -= pooled
        self._changed()
        self._removed(failed)
        if job is not None:
            named = _named(job.blocks) if failed or pooled else []
            job.end([i for i, n in enumerate(named) if n in failed], [i for i, n in enumerate(named) if n in pooled])
        elif failed:
            self.manager.forget([_block(n) for n in failed])
        if (now := time.monotonic()) - self._logged >= self._log_seconds:
            self._logged = now
            logger.info("kvlane: %s", json.dumps(self.stats()))

    def traced(self, request: str, headers: Mapping[str, str]) -> None:
        """Record the trace context of a request, for its spans. The newest 8,192 are kept."""
        if self._tracer is None or request in self._headers:
            return
        self._headers[request] = headers
        if len(self._headers) > _TRACED:
            del self._headers[next(iter(self._headers))]

    def _spanned(self, operation: str, blocks: int, context: ReqContext) -> AbstractContextManager[None]:
        if self._tracer is None:
            return nullcontext()
        return self._tracer.span(operation, blocks, self._headers.get(context.req_id))

    def _begin(self, key: str | int, operation: str, blocks: int, context: ReqContext) -> None:
        if self._tracer is not None:
            self._spans[key] = self._tracer.begin(operation, blocks, self._headers.get(context.req_id))

    def _end_span(self, key: str | int, *, failed: bool) -> None:
        if (span := self._spans.pop(key, None)) is not None:
            span.end("some blocks failed" if failed else "")

    def failed(self, names: Iterable[bytes]) -> None:
        """Record blocks of an unfinished job that a worker could not store or load."""
        self._failed.update(names)

    def pooled(self, names: Iterable[bytes]) -> None:
        """Record blocks of an unfinished direct job that a worker has in memory."""
        self._pooled.update(names)

    def _removed(self, names: Iterable[bytes]) -> None:
        """Add events for blocks that are no longer in the workers' memory."""
        keys = [key for n in names if (key := self._reported.pop(n, None)) is not None]
        if self._events is not None and keys:
            self._events.append(OffloadingEvent(keys, Medium.CPU, removed=True))

    def _drop(self, evicted: list[bytes]) -> list[bytes]:
        """Return the blocks that the workers drop before the next job."""
        out, self._pending_drops = [*self._pending_drops, *evicted], []
        return out

    def _changed(self) -> None:
        self._seen.clear()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Return an empty context: no state is kept for a new request."""
        return RequestOffloadingContext()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Discard lookup results. They are valid for one step."""
        self._changed()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return the events since the last call."""
        if self._events:
            taken, self._events = self._events, []
            yield from taken
        if self._below is not None:
            yield from self._below.take()

    def reset_cache(self) -> None:
        """Make all stored blocks misses for this process: the engine's weights may have changed."""
        self._salt = os.urandom(32)
        for job in [*self._loads.values(), *{id(j): j for j in self._stores.values()}.values()]:
            if job is not None:
                job.end(range(len(job.blocks)))
        for key in list(self._spans):
            self._end_span(key, failed=True)
        self._loads.clear()
        self._times.clear()
        self._stores.clear()
        self._failed.clear()
        self._pooled.clear()
        self._removed(list(self._reported))
        if self._below is not None:
            self._below.reset()
        self._changed()

    def stats(self) -> dict[str, Any]:
        """Return the Manager's counters."""
        return self.manager.stats()

    def metrics(self) -> str:
        """Return the Manager's metrics."""
        return self.manager.metrics()

    def shutdown(self) -> None:
        """Close the Manager."""
        if self._manager is None:
            return
        logger.info("kvlane: %s", json.dumps(self.stats()))
        self.reset_cache()  # ends jobs that no worker will complete
        self.manager.close()
