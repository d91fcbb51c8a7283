"""The worker's side: vLLM's OffloadingWorker over a kvlane.Store."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from .. import errors
from .._metrics import opened
from .._writes import STORED, Writes
from ..errors import Status
from ..keys import Keys
from ..paged import Addresses, PagedCache
from ..store import Store
from ..task import Dump, Load
from .config import PageGroup
from .events import Recorder
from .jobs import GROUP_BYTES, Blocks, by_group

logger = init_logger("vllm.kvlane")  # vLLM configures only the loggers below its own name

_POLL = 0.0005  # seconds
_MEMORY = 1  # in memory: see Store.lookup
_LOOKUP = 1.0  # timeout in seconds of the lookup of blocks that were not written
_PATIENCE = 30.0  # seconds after which a job that cannot start fails, releasing its pages


class Failure(NamedTuple):
    """The failed part of a job: names of blocks, and the pages of a load that must not be read."""

    names: list[bytes]
    pages: set[int]


@dataclass
class _Job:
    id: int
    load: bool
    names: list[bytes]
    pages: list[int]
    evicted: list[bytes]
    layerwise: bool
    before: bytes | None = None
    direct: bool = False
    anchors: list[bytes] | None = None
    vllm_keys: list[bytes] | None = None
    task: Load | Dump | None = None
    error: errors.Error | None = None
    expedited: bool = False  # a load that the host waits for before the step
    begun: float = 0.0
    starting: float = 0.0  # seconds to start a load
    fail_after: float = 0.0  # time at which the job fails if it has not started


class Worker(OffloadingWorker):
    """Implements vLLM's OffloadingWorker. vLLM's worker calls it in one thread.

    All jobs are reported to vLLM as successes. take_failures returns the failures.
    """

    def __init__(self, store: Store, cache: PagedCache, groups: list[PageGroup], recorder: Recorder | None = None) -> None:
        self.store, self.cache, self.recorder = store, cache, recorder
        self._block_bytes = [g.layers * g.page_bytes for g in groups]
        # Jobs that have not started because too many are running. Loads have their own queue, so
        # that they do not wait for stores, which a slow disk may delay.
        self._loads: deque[_Job] = deque()
        self._stores: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._failures: dict[int, Failure] = {}
        self._pooled: dict[int, list[bytes]] = {}  # by direct job: blocks in memory
        # For each load that ended without a failure: its duration, and the duration of the step's
        # wait for it (0 without a wait), in seconds. The connector removes the entries.
        self.times: dict[int, tuple[float, float]] = {}
        self.writes = Writes(logger)  # stores reported to vLLM that are not in files yet
        self._layers = groups[0].layers  # layerwise jobs exist only with a single page group
        self._saved: set[int] = set()  # layers that this step has computed
        self._step: Any = None  # a CUDA stream that waits for the work before a step

    def _keys(self, names: list[bytes]) -> Keys:
        return Keys(
            b"".join(self.store.keys(b"".join(hashes), group, len(hashes[0])).raw for group, hashes in by_group(names).items())
        )

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Start a store of blocks."""
        return self._submit(job_id, False, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False) -> bool:
        """Start a load of blocks. expedited: wait follows, and the step runs after it."""
        return self._submit(job_id, True, src_spec, dst_spec, expedited)

    def _submit(self, job_id: int, load: bool, blocks: LoadStoreSpec, pages: GPULoadStoreSpec, expedited: bool = False) -> bool:
        assert isinstance(blocks, Blocks)
        numbers = pages.block_ids.tolist()
        job = _Job(
            job_id, load, blocks.names, numbers, blocks.evicted, blocks.layerwise, blocks.before, blocks.direct, blocks.anchors,
            blocks.keys,
        )  # fmt: skip
        if len(numbers) != len(blocks.names):
            job.error = errors.Failed(f"{len(blocks.names)} blocks for {len(numbers)} pages")
        job.expedited = expedited
        job.fail_after = time.monotonic() + _PATIENCE
        self._running[job_id] = job
        (self._loads if load else self._stores).append(job)
        self._begin()
        return True

    def _begin(self) -> None:
        for waiting in (self._loads, self._stores):
            while waiting:
                job = waiting[0]
                try:
                    self._start(job)
                except errors.Busy as e:
                    if time.monotonic() < job.fail_after:
                        break
                    job.error = e
                except errors.Error as e:
                    job.error = e
                waiting.popleft()

    def _dequeue(self, job: _Job, why: str) -> None:
        """Fail a job that has not started. It does not touch its pages."""
        waiting = self._loads if job.load else self._stores
        if job in waiting:
            waiting.remove(job)
            job.error = errors.Failed(why)

    def _start(self, job: _Job) -> None:
        if job.error is not None:
            return
        if job.evicted:
            self.store.drop(self._keys(job.evicted))
            job.evicted = []
        if job.load:  # an older store that has not started would drop these blocks
            names = set(job.names)
            for older in self._stores:
                older.evicted = [name for name in older.evicted if name not in names]
        keys = self._keys(job.names)
        if self.recorder is not None:
            of = dict(zip(job.names, job.vllm_keys or job.names, strict=True))
            ordered = [h + g.to_bytes(GROUP_BYTES, "big") for g, hashes in by_group(job.names).items() for h in hashes]
            self.recorder.note(keys, ordered, [of[n] for n in ordered])
        if job.anchors:
            self.store.set_anchors(keys, Keys(job.anchors))
        job.begun = time.monotonic()
        stream = self._stream()
        if not job.load:
            after = None if job.layerwise else stream
            before = self._keys([job.before])[0] if job.before else None
            job.task = self.store.dump(self.cache, keys, job.pages, after, layerwise=job.layerwise, before=before)
            for layer in self._saved if job.layerwise else ():
                self._save(job.task, layer)
            return
        after = stream if self._step is None else self._step
        job.task = self.store.load(
            self.cache,
            keys,
            job.pages,
            after=after,
            layerwise=job.layerwise,
            awaited=job.layerwise and stream is not None,
            promote=not job.direct,
        )
        job.starting = time.monotonic() - job.begun

    def begin_step(self) -> None:
        """Make later loads wait for the work now on the CUDA stream, and not for the step's forward.

        That work may still write to pages that are new to a request, because vLLM zeroes them
        there. With asynchronous scheduling, the previous step may also write a token of a request
        that has ended. The step's own forward does not access pages before their loads end.
        """
        stream = self._stream()
        if stream is None:
            return
        if self._step is None:
            self._step = torch.cuda.Stream()
        self._step.wait_stream(stream)

    def _stream(self) -> Any:
        """Return the current CUDA stream, or None if vLLM computes on the host."""
        return torch.cuda.current_stream() if self.store.driver == "cuda" else None

    @staticmethod
    def _ended(job: _Job) -> bool:
        """Report whether a load has ended, or a store's blocks can be loaded.

        A failed store has ended once its pages are free.
        """
        if job.error is not None:
            return True
        if job.task is None:
            return False
        if isinstance(job.task, Dump):
            try:
                job.task.published(0)
                return True
            except errors.Timeout:
                return False
            except errors.Error:
                pass
        return job.task.done()

    def _failure(self, job: _Job) -> Failure | None:
        if job.task is None:
            logger.warning(
                "Job %d, a %s of %d blocks, did not begin: %s", job.id, "load" if job.load else "store", len(job.names), job.error
            )
            return Failure(job.names, set(job.pages))
        if isinstance(job.task, Load) and job.task.succeeded():
            return None
        try:
            results = job.task.results()
        except errors.Timeout:  # a store that is published, and not durable yet
            assert isinstance(job.task, Dump)
            self.writes.add(job.task)
            return None
        bad = [i for i, r in enumerate(results) if r.status not in ((Status.OK,) if job.load else STORED)]
        if isinstance(job.task, Dump):
            self.writes.note_left_out(job.task, len(bad))
        if bad and not job.load:
            kept = self._there([job.names[i] for i in bad])
            self.writes.note(results[i].status for i, there in zip(bad, kept, strict=True) if there)
            bad = [i for i, there in zip(bad, kept, strict=True) if not there]
        if not bad:
            return None
        why = sorted({results[i].status.name for i in bad})
        logger.warning(
            "Job %d, a %s: %d of %d blocks failed: %s",
            job.id,
            "load" if job.load else "store",
            len(bad),
            len(job.names),
            ", ".join(why),
        )
        return Failure([job.names[i] for i in bad], {job.pages[i] for i in bad})

    def _there(self, names: list[bytes]) -> list[bool]:
        """Report which failed blocks are present: in memory, but not written to files."""
        try:
            return [bool(b) for b in self.store.lookup(self._keys(names), _LOOKUP)]
        except errors.Error as e:
            logger.warning("%d blocks are taken for misses, as they cannot be looked for: %s", len(names), e)
            return [False] * len(names)

    def _in_memory(self, names: list[bytes]) -> list[bytes]:
        """Return the blocks in memory after a direct job; all of them if they cannot be looked up."""
        try:
            return [n for n, b in zip(names, self.store.lookup(self._keys(names), _LOOKUP), strict=True) if b == _MEMORY]
        except errors.Error:
            return names

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that have ended since the last call.

        All are returned as successes: vLLM accepts no other result.
        """
        self._begin()
        self.writes.poll()
        out = []
        for job in [j for j in list(self._running.values()) if self._ended(j)]:
            if self._running.pop(job.id, None) is None:
                continue  # take_loaded returned it
            failure = self._failure(job)
            if failure is not None:
                self._failures[job.id] = failure
            if job.direct and job.task is not None and (pooled := self._in_memory(job.names)):
                self._pooled[job.id] = pooled
            out.append(self._result(job, failure is None))
        return out

    def _result(self, job: _Job, success: bool) -> TransferResult:
        moved = sum(self._block_bytes[g] * len(names) for g, names in by_group(job.names).items())
        elapsed = time.monotonic() - job.begun
        if success and isinstance(job.task, Load):
            waited = elapsed if job.expedited else 0.0
            elapsed = job.task.seconds()
            if job.layerwise:  # the step waits for the start, and each layer for its own part
                waited = job.starting + elapsed
            self.times[job.id] = (elapsed, waited)
        return TransferResult(job.id, True, moved if success else None, elapsed)

    def loading(self) -> bool:
        """Report whether loads are in progress that no step waits for."""
        return any(job.load and not job.layerwise for job in list(self._running.values()))

    def take_loaded(self) -> list[TransferResult]:
        """Return the loads that have ended without a failure since the last get_finished.

        Direct loads are left to get_finished. Safe to call from another thread than the worker's:
        each job is returned once.
        """
        out = []
        for job in list(self._running.values()):
            if not isinstance(job.task, Load) or job.layerwise or job.direct or not job.task.succeeded():
                continue  # get_finished returns failed loads
            if self._running.pop(job.id, None) is not None:
                out.append(self._result(job, True))
        return out

    def take_failures(self) -> dict[int, Failure]:
        """Return the failures of the jobs that get_finished has returned since the last call."""
        out, self._failures = self._failures, {}
        return out

    def take_pooled(self) -> dict[int, list[bytes]]:
        """Return the blocks of direct jobs in memory, as take_failures returns the failures."""
        out, self._pooled = self._pooled, {}
        return out

    def wait(self, job_ids: set[int]) -> None:
        """Wait until these jobs no longer access their pages."""
        for job in [job for i in job_ids if (job := self._running.get(i)) is not None]:
            if job.expedited:
                self._wait_started(job)
            self._dequeue(job, "its pages were requested before its start")
            if isinstance(job.task, Dump):
                try:
                    job.task.source_free()
                except errors.Error:
                    job.task.wait()
            elif job.task is not None:
                job.task.wait()

    def _wait_started(self, job: _Job) -> None:
        """Wait until a load has started or failed."""
        while job in self._loads:
            self._begin()
            time.sleep(_POLL)

    def _layerwise(self, load: bool) -> list[_Job]:
        return [job for job in list(self._running.values()) if job.layerwise and job.load == load]

    def wait_layer(self, layer: int) -> None:
        """Make the model's next work wait until layerwise loads have completed a layer.

        The current CUDA stream waits, or this call. Both continue after failures too. end_loads
        must follow.
        """
        for job in self._layerwise(load=True):
            self._wait_started(job)
            if not isinstance(job.task, Load):
                continue
            if (stream := self._stream()) is not None:
                try:
                    self.store.stream_wait(stream, job.task, layer)
                    continue
                except errors.Error as e:
                    logger.warning("Job %d: its stream cannot wait for layer %d, so the host does: %s", job.id, layer, e)
            with suppress(errors.Error):  # the job's results report it
                job.task.wait_layer(layer)

    def end_loads(self) -> set[int]:
        """Wait on the host until layerwise loads have ended. Returns their numbers.

        get_finished then returns the loads.
        """
        ids = {job.id for job in self._layerwise(load=True)}
        for i in ids:
            self._wait_started(self._running[i])
        self.wait(ids)
        return ids

    def save_layer(self, layer: int) -> None:
        """Mark a layer of layerwise stores as complete.

        The stores read it once the current work on the CUDA stream is done.
        """
        for job in self._layerwise(load=False):
            if isinstance(job.task, Dump):  # a store that starts later submits all such layers then
                self._save(job.task, layer)
        self._saved.add(layer)
        self._begin()

    def end_stores(self) -> None:
        """Mark all layers of layerwise stores as complete, including those without a call."""
        for job in self._layerwise(load=False):
            if isinstance(job.task, Dump):
                for layer in set(range(self._layers)) - self._saved:
                    self._save(job.task, layer)
            job.layerwise = False
        self._saved.clear()

    def _save(self, task: Dump, layer: int) -> None:
        try:
            task.submit_layer(layer, self._stream())
        except errors.Error as e:
            logger.warning("Layer %d is not stored: %s", layer, e)
            task.cancel()  # otherwise it would wait for the layer without end

    def shutdown(self) -> None:
        """Stop the jobs and close the store, which writes pending blocks to files."""
        for job in [*self._loads, *self._stores]:
            self._dequeue(job, "the worker shuts down")
        self.writes.finish(_PATIENCE)
        self.store.close()


def open_worker(
    config: dict[str, Any], kv_caches: CanonicalKVCaches, groups: list[PageGroup], *, recorded: int | None = None
) -> Worker:
    """Open a worker's store over vLLM's KV cache.

    recorded: the rank in the changes of its tiers, or None if they are not recorded.
    """
    if len(kv_caches.group_data_refs) != len(groups):
        raise errors.NotSupported(
            f"vLLM has {len(kv_caches.group_data_refs)} page groups of tensors and {len(groups)} of specifications"
        )
    device = kv_caches.tensors[0].tensor.device
    if device.type not in ("cpu", "cuda"):
        raise errors.NotSupported(f"vLLM's KV cache is on {device}: kvlane.vllm supports cpu and cuda")
    memory = []
    for group, refs in zip(groups, kv_caches.group_data_refs, strict=True):
        tensors = [kv_caches.tensors[r.tensor_idx].tensor for r in refs]
        sizes, strides = {r.page_size_bytes for r in refs}, {int(t.stride(0)) for t in tensors}
        if len(refs) != group.layers or sizes != {group.page_bytes} or len(strides) != 1:
            raise errors.NotSupported(
                f"page group {group.group_id}: {len(refs)} layers with pages of {sorted(sizes)} bytes every {sorted(strides)}, "
                f"and not {group.layers} with {group.page_bytes}"
            )
        memory.append(
            Addresses([t.data_ptr() for t in tensors], tensors[0].shape[0], group.page_bytes, strides.pop(), keep=tensors)
        )
    if device.type == "cpu":
        config = {**config, "device": {"driver": "host"}}
    else:  # stores wait for vLLM's stream, and the stream waits for layers
        config = {"device": {"driver": "cuda", "index": device.index or 0}, **config, "host_streams": True}
    store = opened(Store, config, logger)
    try:
        recorder = None if recorded is None else Recorder(store, recorded)
        return Worker(store, PagedCache(store, groups=memory), groups, recorder)
    except BaseException:
        store.close()
        raise
