"""A storage backend of SGLang's HiCache. It stores pages of host pools without an extra copy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
from sglang.srt.runtime_context import get_parallel

from .. import errors
from . import config
from .engine import engine, replica, restorable
from .pages import Pages, Part, Plane, Pool, Staging, numbers

logger = logging.getLogger(__name__)

KV = "kv"
# Pools that differ between ranks even if KV is the same on all ranks.
_SHARDED = ("mamba",)


def host_pool(name: str, pool: Any, replicated: bool) -> Pool | None:
    """Return a host pool of SGLang's, with the layout that it reports.

    Returns None if the pool has no memory and only numbers the pages of other pools.
    """
    if getattr(pool, "kv_buffer", pool) is None:
        return None
    if getattr(pool, "dcp_size", 1) != 1:
        raise errors.NotSupported(f"pool {name}: decode context parallelism")
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise errors.NotSupported(f"pool {name}: its pages move in memory")
    page, size = int(pool.page_size), int(pool.size)
    last = size // page - 1

    def at(number: int) -> tuple[list[int], list[int]]:
        try:
            where = pool.get_page_buffer_meta(torch.arange(number * page, (number + 1) * page))
        except (ValueError, NotImplementedError, AttributeError) as e:
            raise errors.NotSupported(f"pool {name}, a {type(pool).__name__} of memory layout {pool.layout}: {e}") from e
        return [int(p) for p in where[0]], [int(s) for s in where[1]]

    if last < 1:
        raise errors.NotSupported(f"pool {name}: {size} tokens are not two pages of {page}")
    (first, sizes), (second, _), (final, final_sizes) = at(0), at(1), at(last)
    strides = [b - a for a, b in zip(first, second, strict=True)]
    if sizes != final_sizes or any(a + s * last != b for a, s, b in zip(first, strides, final, strict=True)):
        what = f"pool {name}, a {type(pool).__name__} of memory layout {pool.layout}"
        raise errors.NotSupported(f"{what}: pages are not evenly spaced")
    # In memory order, which is the order of the pages that get and set receive.
    planes = sorted(zip(first, sizes, strides, strict=True))
    return Pool(
        name,
        last + 1,
        page,
        tuple(Plane(i, address, size, stride) for i, (address, size, stride) in enumerate(planes)),
        replicated and name not in _SHARDED,
        keep=pool,
    )


def _name(keys: Sequence[str] | None) -> str:
    """Return the name of the lease of pages between a lookup and a load: the first page's key.

    SGLang passes no name of a request.
    """
    return keys[0] if keys else ""


def _before(extra_info: HiCacheStorageExtraInfo | None) -> str | None:
    """Return the page before the first of a call.

    SGLang passes it only with "hicache_storage_pass_prefix_keys".
    """
    earlier = extra_info.prefix_keys if extra_info else None
    return earlier[-1] if earlier else None


class Storage(HiCacheStorage):
    """Storage that SGLang creates by `--hicache-storage-backend dynamic`. Safe from any thread.

    The option's object has "class_name": "Storage". Pages that cannot be stored, found or loaded
    give False or None, and are counted and logged. SGLang computes them again.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        c = storage_config
        self._own = config.options(c.extra_config)
        if c.should_split_heads:
            raise errors.NotSupported("tp_lcm_size: pages of ranks of different sizes")
        self._replicated = bool(c.is_mla_model)
        store = self._own.get("store") or {}
        if self._replicated and c.tp_size > 1 and not (store.get("dirs") or store.get("remote")):
            raise errors.Invalid('one rank stores KV for all, so it must be in files or servers: give "store" "dirs" or "remote"')
        self._rank = config.Rank(c.tp_rank, c.tp_size, c.pp_rank, c.pp_size, c.attn_cp_rank, c.attn_cp_size, replica())
        self._engine = engine(c.model_name)
        self._host: dict[str, Any] = {}
        self._pages: Pages | None = None
        self._staging: Staging | None = None
        self._lock = threading.Lock()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Add SGLang's pool of KV in host memory."""
        super().register_mem_pool_host(mem_pool_host)
        self._clear_with(mem_pool_host)
        entries = mem_pool_host.entries if isinstance(mem_pool_host, HostPoolGroup) else ()
        for entry in entries:
            self._host[str(entry.name)] = entry.host_pool
        if not entries:
            self._host[KV] = mem_pool_host

    def _clear_with(self, pool: Any) -> None:
        """Call clear() whenever SGLang clears this pool.

        SGLang flushes its cache after every change of weights, but does not notify storage
        backends. It clears this pool then, and at no other time, while its storage threads are
        idle.
        """
        clear = pool.clear

        def cleared() -> None:
            clear()
            self.clear()

        pool.clear = cleared

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Add a further pool. Raises NotSupported after pages were registered."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if self._pages is not None and self._host.get(str(host_pool_name)) is not host_pool:
            raise errors.NotSupported(f"pool {host_pool_name}: it comes after the others were registered")
        self._host[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """Open the store over the pools' memory."""
        if self._pages is not None:
            return
        pools = [p for name, pool in self._host.items() if (p := host_pool(name, pool, self._replicated))]
        form = {
            name: [type(p).__name__, str(p.layout), str(getattr(p, "dtype", "")), str(getattr(p, "storage_format_tag", None))]
            for name, p in self._host.items()
        }
        self._pages = Pages(
            pools,
            lambda groups, layers: config.store_config(
                self._own, self._engine, self._rank, {"host": form}, {"driver": "host"}, groups=groups, layers=layers
            ),
            float(self._own.get("wait_seconds", config.WAIT_SECONDS)),
            config.nonce(self._sharing()),
        )

    def _sharing(self) -> Any:
        """Return the process group of the ranks that share files.

        Returns None if each rank has its own files.
        """
        if not self._replicated or self._rank.tp_size == 1:
            return None
        parallel = get_parallel()
        return (parallel.attn_tp_group if parallel.attn_dp_enabled else parallel.tp_group).cpu_group

    @property
    def pages(self) -> Pages:
        """The store. Raises Closed before the pools are registered and after close."""
        if self._pages is None:
            raise errors.Closed("the store is not open: SGLang has not registered its pools, or has closed it")
        return self._pages

    def _part(self, name: str, hashes: list[str], indices: Any) -> Part:
        return Part(name, hashes, numbers(indices, self.pages.pools[name].page_size, len(hashes)))

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Load pages into the pool's memory."""
        try:
            return self.pages.load([self._part(KV, keys, host_indices)], before=_before(extra_info))[0]
        finally:
            # otherwise SGLang loads pages of the other pools by batch_get_v2
            if len(self.pages.pools) == 1:
                self.pages.leases.release(_name(keys), "loaded")

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Store pages from the pool's memory, which may be changed when this returns.

        With files, the result is False for pages that are not in files. They may still be found in
        memory.
        """
        return self.pages.dump([self._part(KV, keys, host_indices)], written=True, before=_before(extra_info))[0]

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Like batch_get_v1, for several pools at once."""
        return self._v2(transfers, _before(extra_info), load=True)

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Like batch_set_v1, for several pools at once."""
        return self._v2(transfers, _before(extra_info), load=False)

    def _v2(self, transfers: list[PoolTransfer], before: str | None, load: bool) -> dict[str, list[bool]]:
        out = {t.name: [False] * len(t.keys or ()) for t in transfers}
        known = []
        for t in transfers:
            if str(t.name) not in self.pages.pools:
                self.pages.failures.add("transfer", f"no pool {t.name}", len(t.keys or ()))
            elif t.keys and t.host_indices is not None:
                known.append((t, self._part(str(t.name), t.keys, t.host_indices)))
        parts = [part for _, part in known]
        before = before if parts else None
        answers = self.pages.load(parts, before=before) if load else self.pages.dump(parts, written=True, before=before)
        for t in transfers if load else ():
            self.pages.leases.release(_name(t.keys), "loaded")
        return out | {t.name: a for (t, _), a in zip(known, answers, strict=True)}

    def exists(self, key: str) -> bool:
        """Report whether a page of KV is present."""
        return self.pages.there([Part(KV, [key])])[0][0]

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return the number of present pages, from the first on.

        They are leased for a limited time, or until batch_get_v1 is called with the same first
        page.
        """
        found = self.pages.there([Part(KV, keys)])[0]
        n = found.index(False) if False in found else len(found)
        self.pages.keep(_name(keys), [Part(KV, keys[:n])])
        return n

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Return the length of the prefix that is present in all pools.

        Leases the pages like batch_exists.
        """
        return restorable(self.pages, keys, list(pool_transfers or ()), _name(keys))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Copy a page to target_location, a flat tensor of a page's length.

        Returns None on a miss.
        """
        if target_location is None:
            raise errors.Invalid("get a page: no target_location")
        with self._lock:
            staging = self._stage()
            if not self.pages.load([Part(KV, [key], [0])], cache=staging.cache)[0][0]:
                return None
            staging.read(target_location)
        return target_location

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[torch.Tensor | None]:
        """Like get, for several pages."""
        return [self.get(k, t) for k, t in zip(keys, target_locations, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a page from value, a flat tensor as the pool's get_data_page returns it."""
        if value is None:
            raise errors.Invalid("set a page: no value")
        with self._lock:
            staging = self._stage()
            staging.write(value)
            return self.pages.dump([Part(KV, [key], [0])], cache=staging.cache, written=True)[0][0]

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Like set, for several pages. Reports whether all were stored."""
        stored = [self.set(k, v) for k, v in zip(keys, values, strict=True)]
        return all(stored)

    def _stage(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self.pages, KV)
        return self._staging

    def clear(self) -> None:
        """Make all stored pages misses for this process. Files stay until their space is needed."""
        if self._pages is not None:
            self._pages.reset()

    def close(self) -> None:
        """Wait for running work, write pending blocks to files and close the store.

        May be called twice.
        """
        pages, self._pages = self._pages, None
        if pages is not None:
            logger.info("kvlane's figures: %s", pages.stats())
            pages.close()
