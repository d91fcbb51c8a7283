"""A worker's side: vLLM's OffloadingWorker over a kvlane.Store, which has the pinned memory and moves the blocks."""

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
from .jobs import Blocks, by_group

logger = init_logger("vllm.kvlane")  # what vLLM sets up are loggers below its own name

_POLL = 0.0005  # seconds
_LOOKUP = 1.0  # seconds for which blocks are looked for that were not written
_PATIENCE = 30.0  # seconds for which a job that cannot begin keeps its pages from others


class Failure(NamedTuple):
    """What of a job failed: names of blocks, and the pages of a load that are not to be read."""

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
    task: Load | Dump | None = None
    error: errors.Error | None = None
    begun: float = 0.0
    given_up: float = 0.0  # when, if it has not begun by then


class Worker(OffloadingWorker):
    """vLLM's worker calls it, in one thread. A job that fails ends like any other for vLLM; take_failures says what failed."""

    def __init__(self, store: Store, cache: PagedCache, groups: list[PageGroup]) -> None:
        self.store, self.cache = store, cache
        self._block_bytes = [g.layers * g.page_bytes for g in groups]
        # Not begun, as too many are under way. Loads do not wait for stores, which a disk may hold up.
        self._loads: deque[_Job] = deque()
        self._stores: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._failures: dict[int, Failure] = {}
        self.writes = Writes(logger)  # stores reported to vLLM that are not in files yet
        self._layers = groups[0].layers  # where jobs are layerwise there is one page group
        self._saved: set[int] = set()  # layers that this step has computed

    def _keys(self, names: list[bytes]) -> Keys:
        return Keys(
            b"".join(self.store.keys(b"".join(hashes), group, len(hashes[0])).raw for group, hashes in by_group(names).items())
        )

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Begins to store blocks."""
        return self._submit(job_id, False, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Begins to load blocks."""
        return self._submit(job_id, True, src_spec, dst_spec)

    def _submit(self, job_id: int, load: bool, blocks: LoadStoreSpec, pages: GPULoadStoreSpec) -> bool:
        assert isinstance(blocks, Blocks)
        numbers = pages.block_ids.tolist()
        job = _Job(job_id, load, blocks.names, numbers, blocks.evicted, blocks.layerwise, blocks.before)
        if len(numbers) != len(blocks.names):
            job.error = errors.Failed(f"{len(blocks.names)} blocks for {len(numbers)} pages")
        job.given_up = time.monotonic() + _PATIENCE
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
                    if time.monotonic() < job.given_up:
                        break
                    job.error = e
                except errors.Error as e:
                    job.error = e
                waiting.popleft()

    def _withdraw(self, job: _Job, why: str) -> None:
        """Ends a job that has not begun, and touches no page."""
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
        if job.load:  # which an older store would drop that has not begun
            names = set(job.names)
            for older in self._stores:
                older.evicted = [name for name in older.evicted if name not in names]
        keys = self._keys(job.names)
        job.begun = time.monotonic()
        stream = self._stream()
        if not job.load:
            after = None if job.layerwise else stream
            before = self._keys([job.before])[0] if job.before else None
            job.task = self.store.dump(self.cache, keys, job.pages, after, layerwise=job.layerwise, before=before)
            for layer in self._saved if job.layerwise else ():
                self._save(job.task, layer)
            return
        # Behind what vLLM has given the stream: it may still write to pages that are new to the request. It zeroes them there,
        # and with asynchronous scheduling a step that is under way writes a token of a request that has ended meanwhile.
        job.task = self.store.load(
            self.cache, keys, job.pages, after=stream, layerwise=job.layerwise, awaited=job.layerwise and stream is not None
        )

    def _stream(self) -> Any:
        """The current CUDA stream; None where vLLM computes on the host."""
        return torch.cuda.current_stream() if self.store.driver == "cuda" else None

    @staticmethod
    def _ended(job: _Job) -> bool:
        """Whether a load has ended, or whether a store is there for loads; one that failed has ended when the pages are free."""
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
        try:
            results = job.task.results()
        except errors.Timeout:  # a store that is published, and not durable yet
            assert isinstance(job.task, Dump)
            self.writes.add(job.task)
            return None
        bad = [i for i, r in enumerate(results) if r.status not in ((Status.OK,) if job.load else STORED)]
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
        """Which blocks are there all the same: those in memory that could not be written to files."""
        try:
            return [bool(b) for b in self.store.lookup(self._keys(names), _LOOKUP)]
        except errors.Error as e:
            logger.warning("%d blocks are taken for misses, as they cannot be looked for: %s", len(names), e)
            return [False] * len(names)

    def get_finished(self) -> list[TransferResult]:
        """The jobs that have ended since the last call, all of them as successes: vLLM knows no other."""
        self._begin()
        self.writes.poll()
        out = []
        for job in [j for j in self._running.values() if self._ended(j)]:
            del self._running[job.id]
            failure = self._failure(job)
            if failure is not None:
                self._failures[job.id] = failure
            moved = sum(self._block_bytes[g] * len(names) for g, names in by_group(job.names).items())
            out.append(TransferResult(job.id, True, moved if failure is None else None, time.monotonic() - job.begun))
        return out

    def take_failures(self) -> dict[int, Failure]:
        """What failed, of the jobs that get_finished has returned since the last call."""
        out, self._failures = self._failures, {}
        return out

    def wait(self, job_ids: set[int]) -> None:
        """Waits until nothing of these jobs touches the pages."""
        for job in [self._running[i] for i in job_ids if i in self._running]:
            self._withdraw(job, "its pages were asked for before it could begin")
            if isinstance(job.task, Dump):
                try:
                    job.task.source_free()
                except errors.Error:
                    job.task.wait()
            elif job.task is not None:
                job.task.wait()

    def _begun(self, job: _Job) -> None:
        """Waits until a load has begun, or cannot."""
        while job in self._loads:
            self._begin()
            time.sleep(_POLL)

    def _layerwise(self, load: bool) -> list[_Job]:
        return [job for job in self._running.values() if job.layerwise and job.load == load]

    def wait_layer(self, layer: int) -> None:
        """Makes what the model does next wait until layerwise loads have brought a layer: the current CUDA stream, or this
        call. It goes on after failures too, which end_loads is followed by.
        """
        for job in self._layerwise(load=True):
            self._begun(job)
            if not isinstance(job.task, Load):
                continue
            if (stream := self._stream()) is not None:
                try:
                    self.store.stream_wait(stream, job.task, layer)
                    continue
                except errors.Error as e:
                    logger.warning("Job %d: its stream cannot wait for layer %d, so the host does: %s", job.id, layer, e)
            with suppress(errors.Error):  # the job's results say it
                job.task.wait_layer(layer)

    def end_loads(self) -> set[int]:
        """Waits on the host until layerwise loads have ended, so that get_finished says how. Returns their numbers."""
        ids = {job.id for job in self._layerwise(load=True)}
        for i in ids:
            self._begun(self._running[i])
        self.wait(ids)
        return ids

    def save_layer(self, layer: int) -> None:
        """Says that a layer of the pages of layerwise stores is complete, once what is on the current CUDA stream is done."""
        for job in self._layerwise(load=False):
            if isinstance(job.task, Dump):  # one that has not begun yet gets all such layers when it does
                self._save(job.task, layer)
        self._saved.add(layer)
        self._begin()

    def end_stores(self) -> None:
        """Says that all layers of layerwise stores are complete, those too that no call has named."""
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
            task.cancel()  # it would wait for the layer

    def shutdown(self) -> None:
        """Ends what is under way, and closes the store, which writes what is still to be written."""
        for job in [*self._loads, *self._stores]:
            self._withdraw(job, "the worker shuts down")
        self.writes.finish(_PATIENCE)
        self.store.close()


def open_worker(config: dict[str, Any], kv_caches: CanonicalKVCaches, groups: list[PageGroup]) -> Worker:
    """Opens a worker's store over vLLM's KV cache."""
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
    else:  # stores come after what is on vLLM's stream, which waits for layers
        config = {"device": {"driver": "cuda", "index": device.index or 0}, **config, "host_streams": True}
    store = opened(Store, config, logger)
    try:
        return Worker(store, PagedCache(store, groups=memory), groups)
    except BaseException:
        store.close()
        raise
