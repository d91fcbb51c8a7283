"""SGLang's UnifiedCacheLinker. It moves pages between device pools and the store.

It needs none of SGLang's pools in host memory.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
    resolve_hybrid_device_pool_group,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import get_device_module

from .. import errors
from . import config
from .engine import engine, replica, restorable
from .pages import Pages, Part, Plane, Pool, numbers

logger = logging.getLogger(__name__)


def device_pool(entry: DevicePoolEntry, replicated: bool) -> Pool:
    """Return a pool on SGLang's device, with a plane for each of its buffers."""
    layers: dict[int, int] = {}  # layer of each buffer, by its index in its component
    for layer, buffers in entry.layer_mapping.items():
        for i in [buffers] if isinstance(buffers, int) else buffers:
            layers[i] = min(layer, layers.get(i, layer))
    row_span = 1 if entry._row_span == 1 else entry.page_size
    rows = min(int(b.shape[0]) for b in entry.kv_buffer)
    planes = []
    for component in entry.buffer_meta:
        for i, (address, row_stride, size) in enumerate(component):
            if i in layers:
                planes.append(Plane(layers[i], int(address), int(size), int(row_stride) * row_span))
    for buffer in entry.kv_buffer:
        inside = 1
        for length, stride in zip(reversed(buffer.shape[1:]), reversed(buffer.stride()[1:]), strict=True):
            if length != 1 and stride != inside:
                raise errors.NotSupported(f"pool {entry.name}: its rows are not contiguous")
            inside *= length
        if row_span > 1 and buffer.stride(0) != inside:
            raise errors.NotSupported(f"pool {entry.name}: its pages are not contiguous")
    return Pool(str(entry.name), rows // row_span, entry.page_size, tuple(planes), replicated, keep=entry.kv_buffer)


def device_pools(params: CacheInitParams, components: Any) -> DevicePoolGroup:
    """Return SGLang's pools on its device.

    SGLang resolves the groups of hybrid models. This function builds the group of a plain model.
    """
    kvcache = params.token_to_kv_pool_allocator.get_kvcache()
    if type(kvcache) not in (MHATokenToKVPool, MLATokenToKVPool):
        return resolve_hybrid_device_pool_group(kvcache=kvcache, page_size=params.page_size, params=params, components=components)
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise errors.NotSupported("a draft model's KV in addition to a plain model's")
    n, mla = int(kvcache.layer_num), isinstance(kvcache, MLATokenToKVPool)
    scales = ("k_scale_buffer", "native_k_scale_buffer", "scale_buffer", "kv_scale_buffer")
    if any(getattr(kvcache, name, None) is not None for name in scales):
        raise errors.NotSupported("KV with scales of its own")
    if getattr(kvcache, "kv_cache_layout", "nhd") != "nhd":
        raise errors.NotSupported(f"KV in the memory layout {kvcache.kv_cache_layout}")
    entry = DevicePoolEntry(
        name=PoolName.KV,
        indices_from_pool=PoolName.KV,
        device_pool=kvcache,
        components=[list(kvcache.kv_buffer) if mla else [*kvcache.k_buffer, *kvcache.v_buffer]],
        layer_mapping={i: i if mla else (i, n + i) for i in range(n)},
        page_size=params.page_size,
        rows_are_pages=False,
    )
    return DevicePoolGroup([entry], n, params.page_size, rank_replicated=mla)


class Linker(UnifiedCacheLinker):
    """Linker that SGLang creates by `--unified-cache-external-linker-backend dynamic`.

    The option's object has "linker": "Linker". SGLang's scheduler calls it from one thread. One
    thread runs the loads in order, another one the offloads.

    If a load fails, finish_layer_wise_loading returns False, and SGLang aborts the requests of that
    batch. Their pages are not written to afterwards.
    """

    def __init__(
        self,
        server_args: Any,
        params: CacheInitParams,
        *,
        components: Any,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        own = config.options(extra_config)
        self.forward_stream = forward_stream
        self._group = device_pools(params, components)
        self.pools = self._group.entry_map
        replicated = self._group.rank_replicated
        tp_rank, tp_size, tp_group = 0, int(get_parallel().tp_size), None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            tp_group = params.attn_tp_cache_group or params.tp_cache_group
            tp_rank, tp_size = torch.distributed.get_rank(tp_group), torch.distributed.get_world_size(tp_group)
        rank = config.Rank(tp_rank, tp_size, params.pp_rank, params.pp_size, params.attn_cp_rank, params.attn_cp_size, replica())
        device = self._group.entries[0].kv_buffer[0].device
        if device.type not in ("cpu", "cuda"):
            raise errors.NotSupported(f"SGLang's pools are on {device}: kvlane.sglang supports cpu and cuda")
        where = {"driver": "host"} if device.type == "cpu" else {"driver": "cuda", "index": device.index or 0}
        form = {
            name: [
                type(e.device_pool).__name__,
                str(getattr(e.device_pool, "kv_cache_layout", "")),
                [[[str(b.dtype), list(b.shape[1:])] for b in c] for c in e.components],
                sorted((layer, str(buffers)) for layer, buffers in e.layer_mapping.items()),
            ]
            for name, e in self.pools.items()
        }
        self.pages = Pages(
            [device_pool(e, replicated) for e in self._group.entries],
            lambda groups, layers: config.store_config(
                own,
                engine(),
                rank,
                {"device": {str(k): v for k, v in form.items()}, "eagle": params.is_eagle},
                where,
                groups=groups,
                layers=layers,
            ),
            float(own.get("wait_seconds", config.WAIT_SECONDS)),
            config.nonce(tp_group),
        )
        self.layer_done_counter = LayerWiseLoadCounter(self._group.num_layers)
        if "mamba" in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._pending: dict[str, list[Part]] = {}
        self._results: queue.Queue[bool] = queue.Queue()
        self._loads = _Worker("kvlane-load")
        self._offloads = _Worker("kvlane-offload")
        self._closed = False

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Return the lengths of prefixes, in pages, that this rank can restore.

        The pages are leased for a limited time, or until the request's load has ended.
        """
        self._check()
        expanded = self._group.resolve_transfers(transfers)
        kv = next((t for t in transfers if t.name == "kv"), None)
        if not expanded or kv is None or not kv.keys:
            return []
        return list(restorable(self.pages, list(kv.keys), expanded, rid).restorable_prefix_pages or ())

    def _check(self) -> None:
        if self._closed:
            raise errors.Closed("the linker is closed")

    def _parts(self, expanded: list[PoolTransfer]) -> list[Part]:
        return [
            Part(str(t.name), list(t.keys), numbers(t.host_indices, self.pools[t.name].page_size, len(t.keys))) for t in expanded
        ]

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue a load for start_layer_wise_loading.

        Raises Invalid if the request has one already.
        """
        self._check()
        expanded = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if not expanded:
            return False
        if rid in self._pending:
            raise errors.Invalid(f"request {rid} already has a load")
        self._pending[rid] = self._parts(expanded)
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        """Remove a queued load that has not started. Reports whether there was one."""
        self.pages.leases.release(rid, "canceled")
        return self._pending.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        """Start the queued loads, after the current work on the current stream.

        Returns the index of the batch in the counter, or -1 if no load is queued.
        """
        if not self._pending:
            return -1
        rids, parts = list(self._pending), [part for each in self._pending.values() for part in each]
        self._pending = {}
        index = int(self.layer_done_counter.update_producer())
        ready = get_device_module().Event()
        ready.record()
        self._loads.do(lambda: self._load(index, rids, parts, ready))
        return index

    def _load(self, index: int, rids: list[str], parts: list[Part], ready: Any) -> None:
        counter, done = self.layer_done_counter, 0

        def on_layer(layer: int) -> None:
            nonlocal done
            # the last layer completes once the results are known
            if layer < counter.num_layers - 1:
                counter.complete(index, layer)
                done = layer + 1

        try:
            ready.synchronize()
            answers = self.pages.load(parts, on_layer)
            if not all(all(a) for a in answers):
                raise errors.Failed("a page could not be loaded")
            for layer in range(done, counter.num_layers):
                counter.complete(index, layer)
        except BaseException as e:
            counter.fail(index, e)
            if not isinstance(e, errors.Failed):
                logger.exception("A load failed")
        finally:
            for rid in rids:
                self.pages.leases.release(rid, "loaded")

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait until a batch's pages are no longer written to. Reports whether all were loaded."""
        return bool(self.layer_done_counter.finish(counter_index))

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Queue a dump of pages, after the current work on the current and the forward stream."""
        self._check()
        expanded = self._group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        parts, ready = self._parts(expanded), self.record_offload_ready()
        self._offloads.do(lambda: self._offload(parts, ready))
        return True

    def _offload(self, parts: list[Part], ready: list[Any]) -> None:
        good = False
        try:
            for event in ready:
                event.synchronize()
            good = all(all(a) for a in self.pages.dump(parts))
        except BaseException:
            logger.exception("An offload failed")
        finally:
            self._results.put(good)

    def num_completed_offloads(self) -> int:
        """Return the number of ended offloads that pop_completed_offload has not returned yet."""
        return self._results.qsize()

    def pop_completed_offload(self) -> bool:
        """Remove the oldest ended offload. Reports whether it stored all its pages."""
        return self._results.get_nowait()

    def reset(self) -> None:
        """Drop queued loads, wait for running work, and make all stored pages misses.

        SGLang flushes its cache after every change of weights. It does not pass the reason, so
        every flush is treated as a change of weights.
        """
        self._pending.clear()
        self._loads.wait()
        self._offloads.wait()
        self.pages.reset()
        while not self._results.empty():
            self._results.get_nowait()
        self.layer_done_counter.reset()

    def close(self) -> None:
        """End running work, write pending blocks to files and close the store.

        May be called twice.
        """
        if self._closed:
            return
        self._closed = True
        self.reset()
        self._loads.close()
        self._offloads.close()
        logger.info("kvlane's figures: %s", self.pages.stats())
        self.pages.close()


class _Worker:
    """A thread that runs jobs in order."""

    def __init__(self, name: str) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            finally:
                self._queue.task_done()

    def do(self, job: Callable[[], None]) -> None:
        self._queue.put(job)

    def wait(self) -> None:
        """Wait until all jobs are done."""
        self._queue.join()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
