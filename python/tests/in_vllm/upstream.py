"""A pytest plugin that replaces the OffloadingConnector in vLLM's own tests with kvlane's
Connector, while the tests keep their own specification, manager and worker. tools/vllm-upstream
uses it."""

from __future__ import annotations

from typing import Any

import vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector as theirs
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from kvlane.vllm import v0_32
from kvlane.vllm.metrics import Reader


class OffloadingConnector(v0_32.Connector):
    """kvlane's Connector over any offloading specification. Its jobs never fail."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._metrics = Reader(str)  # empty: vLLM's managers and workers do not have kvlane's metrics

    @staticmethod
    def _spec(config: Any, vllm_config: Any, kv_cache_config: Any) -> Any:
        return OffloadingSpecFactory.create_spec(config)

    def _in_files(self, *_: Any) -> bool:
        return False


OffloadingWorker.take_failures = lambda self: {}
OffloadingWorker.take_pooled = lambda self: {}
OffloadingWorker.begin_step = lambda self: None
OffloadingWorker.loading = lambda self: False
OffloadingWorker.times = {}
OffloadingWorker.recorder = None
OffloadingManager.computed = lambda self, tokens, seconds: None
OffloadingManager.scheduled = lambda self, tokens: None
OffloadingManager.changed = lambda self, events: None
for module, name, other in (
    (v0_32, "Worker", OffloadingWorker),
    (v0_32, "Scheduler", OffloadingManager),
    (theirs, "OffloadingConnector", OffloadingConnector),
):
    setattr(module, name, other)
KVConnectorFactory._registry["OffloadingConnector"] = lambda: OffloadingConnector
