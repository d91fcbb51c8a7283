"""The connector for vLLM 0.32.

vLLM's OffloadingConnector does the scheduling: what of a request is looked up, loaded and stored, page group by page group.
It takes it that no job fails. What is added here is the way of a failure: from the worker to the engine, which computes the pages
anew, and to the scheduler's Manager, which forgets the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config, get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.outputs import KVConnectorOutput

from .. import errors
from . import config as configs
from .scheduler import Scheduler
from .worker import Failure, Worker, open_worker

logger = init_logger("vllm.kvlane")  # what vLLM sets up are loggers below its own name

RELEASE = "0.32"


@dataclass
class WorkerMetadata(OffloadingWorkerMetadata):
    """What workers tell the scheduler, with the names of blocks that failed, by job."""

    failed: dict[int, set[bytes]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """What two workers tell in one step."""
        assert isinstance(other, WorkerMetadata)
        both = super().aggregate(other)
        assert isinstance(both, OffloadingWorkerMetadata)
        failed = {job: set(names) for job, names in self.failed.items()}
        for job, names in other.failed.items():
            failed.setdefault(job, set()).update(names)
        return WorkerMetadata(both.completed_jobs, both.transfer_stats, failed)


class Spec(OffloadingSpec):
    """How vLLM's OffloadingConnector gets kvlane's manager and worker."""

    def __init__(self, config: OffloadingConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        super().__init__(config)
        if self.blocks_per_chunk != 1:
            raise errors.NotSupported(
                "kvlane's blocks are vLLM's blocks: set its block size (--block-size) rather than that of chunks"
            )
        self.group_ids = get_offloading_group_ids(kv_cache_config)
        self.groups = configs.page_groups(vllm_config, kv_cache_config, self.group_ids)
        self.stores = [
            configs.store_config(vllm_config, kv_cache_config, self.groups, RELEASE, rank)
            for rank in range(config.parallel.tp_size)
        ]

    def get_manager(self) -> OffloadingManager:
        """The scheduler's."""
        from ..manager import Manager

        manager = Manager([c for i, c in enumerate(self.stores) if c not in self.stores[:i]])
        log_seconds = float(self.extra_config.get("log_seconds", 60))
        return Scheduler(manager, self.group_ids, self.kv_events_config.enable_kv_cache_events, log_seconds)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's."""
        return open_worker(self.stores[self.config.parallel.rank % len(self.stores)], kv_caches, self.groups)


class Connector(OffloadingConnector):
    """vLLM's OffloadingConnector, with kvlane below it. See docs/vllm.md."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        # Not OffloadingConnector's own, which would make its specification from what kv_connector_extra_config names.
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        config = build_offloading_config(vllm_config, kv_cache_config)
        self._canonical_layout = False
        self._failures: dict[int, Failure] = {}
        self._bad_pages: set[int] = set()
        self.connector_scheduler = self.connector_worker = None
        spec = Spec(config, vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
                logger.warning(
                    'kvlane: a block that cannot be loaded fails its requests; set "kv_load_failure_policy": "recompute"'
                )
            self.connector_scheduler = OffloadingConnectorScheduler(spec, vllm_config, kv_cache_config)
        else:
            self.connector_worker = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)
        # Block numbers name a request's blocks only where there is one page group.
        self._by_page = len(kv_cache_config.kv_cache_groups) == 1

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The requests whose loads have ended, and with several page groups those of them that failed."""
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        loads = dict(self.connector_worker._load_jobs)
        sent, received = self.get_finished(finished_req_ids)
        assert isinstance(worker, Worker)
        failures = worker.take_failures()
        self._failures |= failures
        failed = [job for job in failures if job in loads]
        if self._by_page:
            self._bad_pages.update(page for job in failed for page in failures[job].pages)
            failed = []
        return KVConnectorTransferResults(
            finished_sending=sent, finished_recving=received, failed_recving={loads[job] for job in failed}
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The pages that loads failed for, where there is one page group."""
        pages, self._bad_pages = self._bad_pages, set()
        return pages

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        """What this worker tells the scheduler in this step."""
        meta = super().build_connector_worker_meta()
        if meta is None:
            return None
        failures, self._failures = self._failures, {}
        return WorkerMetadata(meta.completed_jobs, meta.transfer_stats, {job: set(f.names) for job, f in failures.items()})

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers told: failed blocks are forgotten, and those of loads will be stored anew."""
        meta, scheduler = connector_output.kv_connector_worker_meta, self.scheduler
        if isinstance(meta, WorkerMetadata):
            manager = scheduler.manager
            assert isinstance(manager, Scheduler)
            for job, names in meta.failed.items():
                status = scheduler._jobs.get(job)
                if status is None:
                    continue  # from before reset_cache
                manager.failed(names)
                request = scheduler._req_status.get(status.req_id)
                if not status.is_store and request is not None:
                    for group in request.group_states:
                        group.next_stored_chunk_idx = 0
        super().update_connector_output(connector_output)
