"""The connectors for vLLM 0.32 and 0.33.

vLLM's OffloadingConnector schedules: it selects the parts of a request to look up, load and store,
by page group. It assumes that no job fails. This module adds the handling of failures: the engine
computes the pages again, and the scheduler's Manager forgets the blocks. LayerwiseConnector also
adds loads within the step that needs them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
    SchedulerOffloadConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from .. import errors
from . import config as configs
from .events import MEDIA
from .metrics import PromMetrics, Reader, Stats
from .pace import Pace
from .results import LateLoads, Requests, WorkerMetadata
from .scheduler import Scheduler
from .spec import Kernels, Spec
from .worker import Failure, Worker

logger = init_logger("vllm.kvlane")  # vLLM configures only the loggers below its own name


class Connector(OffloadingConnector):
    """vLLM's OffloadingConnector, with kvlane below it. See docs/vllm.md."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        # Not OffloadingConnector's constructor: it would create the specification that
        # kv_connector_extra_config names.
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        config = build_offloading_config(vllm_config, kv_cache_config)
        self._canonical_layout = False
        self._failures: dict[int, Failure] = {}
        self._pooled: dict[int, list[bytes]] = {}
        self._bad_pages: set[int] = set()
        self._late: LateLoads | None = None  # of the step whose results are being taken
        self._metrics: Reader | None = None
        self._pace = Pace(2 if vllm_config.scheduler_config.async_scheduling else 1)
        self.connector_scheduler = self.connector_worker = None
        self.spec = spec = self._spec(config, vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
                logger.warning(
                    'kvlane: a block that cannot be loaded fails its requests; set "kv_load_failure_policy": "recompute"'
                )
            self.connector_scheduler = OffloadingConnectorScheduler(spec, vllm_config, kv_cache_config)
        else:
            self.connector_worker = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)
        # Block numbers identify a request's blocks only if there is one page group.
        self._by_page = len(kv_cache_config.kv_cache_groups) == 1
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._from_files = bool(extra.get("layerwise_files", False))
        self._in_steps = bool(extra.get("sync_load_budget_bytes"))  # some loads are within a step
        if self._in_steps:
            configs.check_loads_in_steps(vllm_config, kv_cache_config, SchedulerOffloadConfig._fields)
        # by job of this step: the request, and the pages that depend on the job
        self._loading: dict[int, tuple[str, list[int]]] = {}

    @staticmethod
    def _spec(config: OffloadingConfig, vllm_config: Any, kv_cache_config: Any) -> OffloadingSpec:
        return Spec(config, vllm_config, kv_cache_config)

    def get_kv_connector_stats(self) -> Stats | None:
        """Return vLLM's statistics, with the changes of kvlane's metrics in this process."""
        theirs = super().get_kv_connector_stats()
        stats = Stats() if theirs is None else Stats(data=theirs.data)
        if self._metrics is None and self.connector_scheduler is not None:
            manager = self.connector_scheduler.manager
            assert isinstance(manager, Scheduler)
            self._metrics = Reader(manager.metrics)
        elif self._metrics is None and self.connector_worker is not None:
            worker = self.connector_worker.worker
            if isinstance(worker, Worker):
                self._metrics = Reader(worker.store.metrics)
        if self._metrics is not None and (changed := self._metrics.changed()):
            assert isinstance(self.spec, Spec)
            rank = "scheduler" if self.connector_scheduler is not None else str(self.spec.config.parallel.rank)
            stats.add(rank, changed)
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """Return the statistics that another process has sent."""
        return Stats() if data is None else Stats(data=data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> PromMetrics:
        """Return the metrics for vLLM's own /metrics."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def get_handshake_metadata(self) -> Kernels:
        """Return this worker's kernels for the scheduler."""
        assert isinstance(self.spec, Spec)
        worker = None if self.connector_worker is None else self.connector_worker.worker
        return Kernels(self.spec.kernels(), isinstance(worker, Worker) and worker.store.direct)

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Receive the workers' kernels, by rank, and open the Manager.

        The identity of KV is now known.
        """
        workers = [m for m in metadata.values() if isinstance(m, Kernels)]
        reported = [m.kernels for m in workers]
        if not reported or any(other != reported[0] for other in reported):
            raise errors.NotSupported(f"workers whose kernels may hold KV in different ways: {reported}")
        manager = self.scheduler.manager
        assert isinstance(self.spec, Spec)
        assert isinstance(manager, Scheduler)
        opened = self.spec.open_manager(reported[0], direct=all(m.direct for m in workers))
        manager.open(opened, self.spec.below(reported[0]))

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the number of tokens that can be loaded.

        The second value is True if they are loaded before the request's first step.
        """
        if request.trace_headers:
            assert isinstance(self.scheduler.manager, Scheduler)
            self.scheduler.manager.traced(request.request_id, request.trace_headers)
        if self._in_steps and self._shares(request, num_computed_tokens):
            return None, False
        found, whole = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if (
            found
            and not whole
            and not self._from_files
            and self._in_files(request, num_computed_tokens, num_computed_tokens + found)
        ):
            self.scheduler._current_batch_sync_loads.discard(request.request_id)
            self.scheduler._current_batch_sync_load_bytes -= found * self.scheduler.config.kv_bytes_per_token
            return found, True  # other requests are computed meanwhile
        return found, whole

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Create the job of a load."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens and self._in_steps:
            number, job = next(reversed(self.scheduler._current_batch_load_jobs.items()))
            if getattr(job, "sync", False):
                self._depends(number, request, blocks.blocks[0])
                if self.scheduler._chunks_being_loaded is not None:
                    self.scheduler._chunks_being_loaded.update(self.scheduler._jobs[number].keys)

    def _depends(self, number: int, request: Request, pages: Any) -> None:
        """Record the pages that a load within this step fills, and those computed from them."""
        status = self.scheduler._req_status[request.request_id]
        first = status.num_locally_computed_tokens // self.scheduler.config.kv_group_configs[0].tokens_per_block
        self._loading[number] = (request.request_id, [p.block_id for p in pages[first:] if not p.is_null])

    def _in_files(self, request: Request, first: int, end: int) -> bool:
        """Report whether a block of these tokens is in files, and not in all workers' memory."""
        status, manager = self.scheduler._req_status[request.request_id], self.scheduler.manager
        assert isinstance(manager, Scheduler)
        size = self.scheduler.config.kv_group_configs[0].tokens_per_chunk
        return manager.in_files(status.group_states[0].offload_keys[first // size : end // size], status.req_context)

    def _shares(self, request: Request, num_computed_tokens: int) -> bool:
        """Report whether pages of the request are still being loaded for another one."""
        scheduler = self.scheduler
        if not scheduler._chunks_being_loaded:
            return False
        status = scheduler._req_status[request.request_id]
        status.update_offload_keys()
        chunks = num_computed_tokens // scheduler.config.kv_group_configs[0].tokens_per_chunk
        return any(key in scheduler._chunks_being_loaded for key in status.group_states[0].offload_keys[:chunks])

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any:
        """Return the jobs of a step. Reports the duration of an earlier step to the Manager.

        Blocks that depend on loads within the step are stored by the next step, after verification.
        """
        loading = {request for request, _ in self._loading.values()}
        tokens = {r: n for r, n in scheduler_output.num_scheduled_tokens.items() if r not in loading}
        meta = super().build_connector_meta(replace(scheduler_output, num_scheduled_tokens=tokens))
        sample = self._pace.step(time.monotonic(), scheduler_output.num_scheduled_tokens, bool(meta.load_jobs))
        manager = self.scheduler.manager
        if isinstance(manager, Scheduler):
            manager.scheduled(scheduler_output.total_num_scheduled_tokens)
            if sample is not None:
                manager.computed(*sample)
        return meta

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Receive a step's jobs. Its loads wait for the work that is on the CUDA stream now."""
        super().bind_connector_metadata(connector_metadata)
        worker = None if self.connector_worker is None else self.connector_worker.worker
        if isinstance(worker, Worker) and connector_metadata.load_jobs:
            worker.begin_step()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose loads have ended.

        With several page groups, failed loads are returned as failed requests.
        """
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        loads = dict(self.connector_worker._load_jobs)
        sent, received = self.get_finished(finished_req_ids)
        assert isinstance(worker, Worker)
        failures = worker.take_failures()
        self._failures |= failures
        self._pooled |= worker.take_pooled()
        failed = [job for job in failures if job in loads]
        if self._by_page:
            self._bad_pages.update(page for job in failed for page in failures[job].pages)
            failed = []
        requests = self._received(received)
        return KVConnectorTransferResults(
            finished_sending=sent,
            finished_recving=requests,
            failed_recving={r for job in failed if (r := loads[job]) is not None},
        )

    def _received(self, ended: set[str]) -> Any:
        """Return the requests whose loads have ended, with those that end before it is read."""
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert isinstance(worker, Worker)
        self._late = LateLoads(self._take_loaded) if worker.loading() else None
        return ended if self._late is None else Requests(ended, self._late)

    def _take_loaded(self) -> tuple[set[str], WorkerMetadata]:
        """Return the requests and the metadata of loads that have ended. For any thread."""
        side, meta = self.connector_worker, WorkerMetadata()
        assert side is not None
        assert isinstance(side.worker, Worker)
        requests = set()
        for result in side.worker.take_loaded():
            if (request := side._load_jobs.pop(result.job_id, None)) is not None:
                requests.add(request)
            meta.mark_completed(result.job_id)
            meta.transfer_stats.load.record(result.transfer_size, result.transfer_time)
            meta.times[result.job_id] = side.worker.times.pop(result.job_id)
        return requests, meta

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the pages whose loads failed, if there is one page group."""
        pages, self._bad_pages = self._bad_pages, set()
        return pages

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        """Return this worker's metadata for the scheduler in this step."""
        meta, late = super().build_connector_worker_meta(), self._late
        self._late = None
        worker = None if self.connector_worker is None else self.connector_worker.worker
        events = worker.recorder.take() if isinstance(worker, Worker) and worker.recorder is not None else []
        if meta is None and late is None and not events:
            return None
        failures, self._failures = self._failures, {}
        pooled, self._pooled = self._pooled, {}
        failed = {job: set(f.names) for job, f in failures.items()}
        meta = meta or OffloadingWorkerMetadata()
        in_memory = {job: set(p) for job, p in pooled.items()}
        known = worker.times if isinstance(worker, Worker) else {}
        times = {job: known.pop(job) for job in meta.completed_jobs if job in known}
        return WorkerMetadata(meta.completed_jobs, meta.transfer_stats, failed, in_memory, times, late, events)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Process the workers' metadata: forget failed blocks, and store those of loads again.

        Pages with wrong KV after a failed load within a step are evicted from vLLM's cache.
        """
        meta, scheduler = connector_output.kv_connector_worker_meta, self.scheduler
        if isinstance(meta, WorkerMetadata):
            meta.read()
            manager = scheduler.manager
            assert isinstance(manager, Scheduler)
            manager.changed(meta.events)
            for job, names in meta.pooled.items():
                if job in scheduler._jobs:
                    manager.pooled(names)
            for job, times in meta.times.items():
                if (status := scheduler._jobs.get(job)) is not None:
                    manager.loaded(status.req_id, *times)
            for job, names in meta.failed.items():
                status = scheduler._jobs.get(job)
                if status is None:
                    continue  # the job precedes reset_cache
                manager.failed(names)
                request = scheduler._req_status.get(status.req_id)
                if not status.is_store and request is not None:
                    for group in request.group_states:
                        group.next_stored_chunk_idx = 0
                        if request.req.is_finished():
                            group.block_ids.clear()  # the request's blocks are not stored
            for job in meta.completed_jobs:
                _, pages = self._loading.pop(job, ("", []))
                if meta.failed.get(job):
                    self._kv_cache_manager.evict_blocks(set(pages))
        super().update_connector_output(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Return vLLM's events since the last call. The medium names the tier."""
        for event in super().take_events():
            if isinstance(event, BlockStored | BlockRemoved) and event.ownership in MEDIA:
                event.medium = MEDIA[event.ownership]
            yield event

    def reset_cache(self) -> bool | None:
        """Forget all blocks and jobs."""
        self._loading.clear()
        return bool(super().reset_cache())


class LayerwiseConnector(Connector):
    """Connector with loads inside the step that computes the rest of the prompt.

    Each layer waits only for its own KV. The blocks that a step computes are stored layer by layer
    too. See docs/vllm.md for the requirements.

    In three cases a load completes before the request's first step, as in Connector. The model has
    several page groups, or one that is not attention. The step would write tokens to pages that are
    being loaded. Or blocks come from files, and their slow load would delay other requests.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        configs.check_layerwise(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        whole = configs.why_whole(vllm_config, kv_cache_config)
        if whole is not None:
            logger.warning("kvlane: KV is not moved layer by layer: %s", whole)
        layers = () if whole is not None else kv_cache_config.kv_cache_groups[0].layer_names
        self._layers = {name: i for i, name in enumerate(layers)}
        if self._in_steps:
            raise errors.NotSupported("LayerwiseConnector loads within a step: sync_load_budget_bytes is for Connector")
        self._in_steps = bool(layers)
        # A draft model writes to its layers after the call for them.
        self._saves = bool(layers) and vllm_config.speculative_config is None
        self._begun: Any = None  # the step whose loads were submitted
        self._in_step: set[str] = set()  # the requests to load within a step
        self._waited: set[str] = set()  # the requests that the last step has loaded

    @staticmethod
    def _spec(config: OffloadingConfig, vllm_config: Any, kv_cache_config: Any) -> OffloadingSpec:
        return Spec(config, vllm_config, kv_cache_config, configs.why_whole(vllm_config, kv_cache_config) is None)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Return True: vLLM must call the connector for each layer."""
        return True

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the number of tokens that can be loaded.

        The second value is True if they are loaded before the request's first step.
        """
        self._in_step.discard(request.request_id)
        found, whole = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if not found or not self._layers:
            return found, whole
        end = num_computed_tokens + found
        if end % self.scheduler.config.kv_group_configs[0].tokens_per_chunk or end >= request.num_tokens:
            return found, True  # the next token is in a page that is loaded
        if not self._from_files and self._in_files(request, num_computed_tokens, end):
            return found, True  # other requests are computed meanwhile
        self._in_step.add(request.request_id)
        return found, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Create the job of a load."""
        if not num_external_tokens or request.request_id not in self._in_step:
            super().update_state_after_alloc(request, blocks, num_external_tokens)
            return
        self._in_step.discard(request.request_id)
        # Pages that are filled in this step have their hashes already. vLLM's connector would treat
        # them as filled.
        (pages,) = blocks.blocks
        unfilled = [KVCacheBlock(p.block_id, is_null=p.is_null) for p in pages]
        super().update_state_after_alloc(request, KVCacheBlocks((unfilled,)), num_external_tokens)
        number, job = next(reversed(self.scheduler._current_batch_load_jobs.items()))
        job.src_spec.layerwise = True
        self._depends(number, request, pages)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start the step's loads, and the stores deferred to this step."""
        if self._begun is not self._connector_metadata:
            self._begun = self._connector_metadata
            super().start_load_kv(forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for a layer of the step's loads, on the current CUDA stream or on the host."""
        layer = self._layers.get(layer_name)
        if layer is not None:
            self._worker().wait_layer(layer)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Start storing a layer of the pages that the step fills."""
        layer, meta = self._layers.get(layer_name), self._connector_metadata
        if layer is None or not self._saves or not self._side()._is_store_writer:
            return
        if meta.store_jobs:
            self.start_load_kv(None)  # jobs start in the order of their creation
            for number, job in meta.store_jobs.items():
                job.dst_spec.layerwise = True
                self._worker().submit_store(number, job.src_spec, job.dst_spec)
            meta.store_jobs = {}
        self._worker().save_layer(layer)

    def wait_for_save(self) -> None:
        """Complete the layerwise stores. Other stores start with the next step."""
        self._worker().end_stores()
        super().wait_for_save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose loads preceded their first step and have ended.

        Failures of loads within the step are also recorded here.
        """
        loads = dict(self._side()._load_jobs)
        self._waited = {loads[job] for job in self._worker().end_loads()}
        return super().get_transfer_results(finished_req_ids)

    def _received(self, ended: set[str]) -> Any:
        return super()._received(ended - self._waited)

    def _side(self) -> OffloadingConnectorWorker:
        assert self.connector_worker is not None
        return self.connector_worker

    def _worker(self) -> Worker:
        worker = self._side().worker
        assert isinstance(worker, Worker)
        return worker
