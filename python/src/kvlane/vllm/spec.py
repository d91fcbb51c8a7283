"""The specification from which vLLM's OffloadingConnector creates kvlane's two sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

from .. import errors
from .._metrics import address, opened
from .._traces import Tracer
from ..manager import Manager
from . import config as configs
from .events import Below
from .scheduler import Scheduler
from .worker import open_worker

logger = init_logger("vllm.kvlane")  # vLLM configures only the loggers below its own name


@dataclass
class Kernels(KVConnectorHandshakeMetadata):
    """Handshake from a worker to the scheduler before the first step: see config.kernels.

    direct: the worker uses direct storage.
    """

    kernels: dict[str, Any]
    direct: bool = False


class Spec(OffloadingSpec):
    """Specification from which vLLM's OffloadingConnector creates kvlane's two sides."""

    def __init__(self, config: OffloadingConfig, vllm_config: Any, kv_cache_config: Any, layerwise: bool = False) -> None:
        super().__init__(config)
        self.layerwise = layerwise
        if self.blocks_per_chunk != 1:
            raise errors.NotSupported(
                "kvlane's blocks are vLLM's blocks: set its block size (--block-size) rather than that of chunks"
            )
        self.group_ids = get_offloading_group_ids(kv_cache_config)
        self.groups = configs.page_groups(vllm_config, kv_cache_config, self.group_ids)
        self._vllm = (vllm_config, kv_cache_config)

    def kernels(self) -> dict[str, Any]:
        """Return the properties of this worker's kernels."""
        return configs.kernels(*self._vllm, self.group_ids)

    def _stores(self, kernels: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the configurations of all ranks' stores."""
        ranks = range(self.config.parallel.tp_size)
        return [configs.store_config(*self._vllm, self.groups, kernels, rank) for rank in ranks]

    def get_manager(self) -> OffloadingManager:
        """Return the scheduler's side. open_manager later creates its Manager."""
        log_seconds = float(self.extra_config.get("log_seconds", 60))
        tokens = self.groups[0].block_tokens if len(self.groups) == 1 else 0
        in_steps = self.layerwise or bool(self.extra_config.get("sync_load_budget_bytes"))
        tracer = Tracer() if self.extra_config.get("traces") else None
        return Scheduler(
            self.group_ids, self.kv_events_config.enable_kv_cache_events, log_seconds, tokens, in_steps, tracer=tracer
        )

    def _ranks(self, kernels: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the configurations of the ranks with different parts of a block."""
        stores = self._stores(kernels)
        return [c for i, c in enumerate(stores) if c not in stores[:i]]

    def below(self, kernels: dict[str, Any]) -> Below:
        """Return an empty index of the tiers below the workers' memory."""
        ranks = self._ranks(kernels)
        store = ranks[0]["store"]
        if pipeline := store.get("pipeline"):
            tiers = [t.strip().lower() for t in str(pipeline).split("|")]
        else:
            tiers = [t for t, place in (("file", "dirs"), ("remote", "remote"), ("object", "object")) if store.get(place)]
        return Below(len(ranks), tiers)

    def open_manager(self, kernels: dict[str, Any], *, direct: bool) -> Manager:
        """Open the index of the blocks of workers with such kernels."""
        ranks = self._ranks(kernels)
        served = self._served(None)
        return opened(lambda config: Manager(ranks, metrics_addr=config.get("metrics_addr"), direct=direct), served, logger)

    def _served(self, rank: int | None) -> dict[str, str]:
        """Return the configuration of the metrics address of a worker or the scheduler."""
        addr, parallel = self.extra_config.get("metrics_addr"), self.config.parallel
        if not addr:
            return {}
        return {"metrics_addr": address(str(addr), parallel.tp_size, rank, parallel.data_parallel_index)}

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Open the side of one worker."""
        stores = self._stores(self.kernels())
        rank = self.config.parallel.rank % len(stores)
        own = configs.of_worker(stores, rank)
        if own is not stores[rank]:
            logger.info("kvlane: rank %d has the KV of another rank, which writes the files of both", rank)
            Manager([stores[rank]], 1).close()  # makes the directories, which may be absent
        events = self.kv_events_config.enable_kv_cache_events and own is stores[rank]
        recorded = self._ranks(self.kernels()).index(own) if events else None
        return open_worker(own | self._served(self.config.parallel.rank), kv_caches, self.groups, recorded=recorded)
