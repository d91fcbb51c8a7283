"""Drives kvlane.sglang.Linker through SGLang's pools and radix cache."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlane import errors

from .pools import LAYERS, PAGE, TOKENS, device_pool, fill, flip, hashes, own


def params(mla: bool = False, pool: Any = None) -> Any:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    pool = pool or device_pool(mla)
    allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.bfloat16, "cpu", pool, False)
    requests = ReqToTokenPool(size=8, max_context_len=256, device="cpu", enable_memory_saver=False)
    return CacheInitParams(False, requests, allocator, PAGE, tree_components=(ComponentType.FULL,))


def buffers(linker: Any) -> list[torch.Tensor]:
    return list(linker.pools["kv"].kv_buffer)


@pytest.fixture
def link() -> Iterator[Callable[..., Any]]:
    """Returns link(params, options), which makes linkers as SGLang does."""
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_cache.linker_factory import create_unified_cache_linker

    made: list[Any] = []

    def make(p: Any, options: dict[str, Any]) -> Any:
        config = {"linker": "Linker", "linker_module_path": "kvlane.sglang", "linker_extra_config": options}
        made.append(create_unified_cache_linker(None, p, backend="dynamic", config=config, components={ComponentType.FULL}))
        return made[-1]

    yield make
    for linker in made:
        linker.close()


def transfer(keys: list[str], *pages: int) -> list[Any]:
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    where = torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages]) if pages else None
    return [PoolTransfer(PoolName.KV, device_indices=where, keys=keys)]


def slots(linker: Any, page: int) -> list[torch.Tensor]:
    return [b[page * PAGE : (page + 1) * PAGE].clone() for b in buffers(linker)]


def offload(linker: Any, keys: list[str], *pages: int) -> bool:
    assert linker.offload(transfer(keys, *pages))
    linker._offloads.wait()
    assert linker.num_completed_offloads() == 1
    return bool(linker.pop_completed_offload())


def bring(linker: Any, keys: list[str], *pages: int) -> bool:
    assert linker.load("r", transfer(keys, *pages))
    return bool(linker.finish_layer_wise_loading(linker.start_layer_wise_loading()))


@pytest.mark.parametrize("mla", [False, True])
def test_pages_come_back_layer_by_layer(link: Any, mla: bool) -> None:
    linker = link(params(mla), own())
    fill(buffers(linker))
    keys = hashes(3)
    assert linker.lookup("r", transfer(keys)) == []
    want, untouched = [slots(linker, p) for p in (1, 2, 3)], slots(linker, 6)
    assert offload(linker, keys, 1, 2, 3)
    assert linker.lookup("r", transfer(keys)) == [1, 2, 3]
    assert linker.lookup("r", transfer([*keys[:2], "e" * 64])) == [1, 2]
    assert linker.load("r", transfer(keys, 7, 8, 9))
    index = linker.start_layer_wise_loading()
    counter = linker.layer_done_counter
    counter.set_consumer(index)
    half = len(buffers(linker)) // LAYERS
    for layer in range(LAYERS):
        counter.wait_until(layer)
        for i, page in enumerate((7, 8, 9)):
            got = slots(linker, page)
            for plane in (layer, LAYERS + layer)[:half]:
                assert torch.equal(got[plane], want[i][plane])
    assert linker.finish_layer_wise_loading(index)
    assert all(torch.equal(a, b) for a, b in zip(slots(linker, 6), untouched, strict=True))


def test_a_load_that_cannot_be_right_fails_as_a_batch(link: Any, tmp_path: Path) -> None:
    linker = link(params(), own(tmp_path))
    fill(buffers(linker))
    keys = hashes(2)
    assert offload(linker, keys, 1, 2)
    assert not bring(linker, [keys[0], "d" * 64], 4, 5), "a page that is not there"
    assert bring(linker, keys, 4, 5)
    linker.close()
    flip(tmp_path)
    again = link(params(), own(tmp_path))
    assert not bring(again, keys, 4, 5)
    assert again.lookup("r", transfer(keys)) == [], "damaged pages are forgotten"
    fill(buffers(again))
    assert offload(again, keys, 1, 2)
    assert bring(again, keys, 4, 5)
    assert all(torch.equal(a, b) for a, b in zip(slots(again, 5), slots(again, 2), strict=True))


def test_pages_stay_from_lookup_to_load(link: Any) -> None:
    options = own()
    options["kvlane"]["store"]["cache_bytes"] = 160 << 10
    linker = link(params(), options)
    fill(buffers(linker))
    keys = hashes(3)
    assert offload(linker, keys, 1, 2, 3)
    for _ in range(2):
        assert linker.lookup("r", transfer(keys)) == [1, 2, 3]
    for i in range(60):
        assert offload(linker, hashes(1, seed=50 + i), 4)
    assert bring(linker, keys, 7, 8, 9), "SGLang would abort the request"
    linker._loads.wait()
    assert linker.pages.stats()["sglang_leases"] == {"held": 0, "taken": 2, "replaced": 1, "loaded": 1}
    assert linker.lookup("s", transfer(keys)) == [1, 2, 3]
    assert linker.load("s", transfer(keys, 7, 8, 9))
    assert linker.cancel_queued_load("s")
    assert linker.lookup("t", transfer(keys)) == [1, 2, 3]
    linker.reset()
    stats = linker.pages.stats()["sglang_leases"]
    assert (stats["held"], stats["canceled"], stats["reset"]) == (0, 1, 1)


def test_cancel_reset_and_close(link: Any) -> None:
    linker = link(params(), own())
    keys = hashes(1)
    assert linker.start_layer_wise_loading() == -1
    assert not linker.cancel_queued_load("r")
    assert linker.load("r", transfer(keys, 1))
    with pytest.raises(errors.Invalid, match="already"):
        linker.load("r", transfer(keys, 1))
    assert linker.cancel_queued_load("r")
    assert linker.start_layer_wise_loading() == -1
    assert linker.offload(transfer(keys, 1))
    linker.reset()
    assert linker.num_completed_offloads() == 0
    assert linker.lookup("r", transfer(keys)) == []
    linker.close()
    linker.close()
    with pytest.raises(errors.Closed):
        linker.lookup("r", transfer(keys))
    assert not [t for t in threading.enumerate() if t.name in ("kvlane-load", "kvlane-offload")]


def test_nothing_old_is_found_after_a_flush(link: Any, tmp_path: Path) -> None:
    """SGLang flushes its cache whenever the weights change. After a restart the original weights
    are in use again, and so is their KV."""
    linker = link(params(), own(tmp_path))
    fill(buffers(linker))
    keys, first = hashes(2), slots(linker, 1)
    assert offload(linker, keys, 1, 2)
    linker.reset()
    assert linker.lookup("r", transfer(keys)) == []
    assert not bring(linker, keys, 4, 5)
    fill(buffers(linker), 1)
    second = slots(linker, 1)
    assert offload(linker, keys, 1, 2)
    assert linker.lookup("r", transfer(keys)) == [1, 2]
    assert bring(linker, keys, 4, 5)
    assert all(torch.equal(a, b) for a, b in zip(slots(linker, 4), second, strict=True))
    linker.close()
    again = link(params(), own(tmp_path))
    assert bring(again, keys, 4, 5)
    assert all(torch.equal(a, b) for a, b in zip(slots(again, 4), first, strict=True))
    again.reset()
    assert again.lookup("r", transfer(keys)) == [], "of the weights that another process was given"


def test_what_is_not_supported_is_refused(link: Any) -> None:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = device_pool()
    assert isinstance(pool, MHATokenToKVPool)
    pool.kv_cache_layout = "hnd"
    with pytest.raises(errors.NotSupported, match="hnd"):
        link(params(pool=pool), own())
    p = params()
    p.sidecar_draft_device_pools = (device_pool(),)
    with pytest.raises(errors.NotSupported, match="draft"):
        link(p, own())


def test_the_radix_cache_offloads_and_loads_back(link: Any, tmp_path: Path) -> None:
    """One cache stores a prompt. After a restart a second cache finds it and loads it into its own
    pages."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.sampling.sampling_params import SamplingParams

    tokens = array("q", range(1, 5 * PAGE + 1))

    def cache() -> tuple[Any, Any, Any]:
        p = params()
        c = UnifiedRadixCache(p)
        linker = link(p, own(tmp_path))
        c.init_cache_linker(linker)
        return c, linker, p

    c, linker, p = cache()
    fill(buffers(linker))
    slots_of = p.token_to_kv_pool_allocator.alloc(len(tokens))
    want = [b[slots_of].clone() for b in buffers(linker)]
    c.insert(InsertParams(key=RadixKey(tokens, None), value=slots_of))
    linker._offloads.wait()
    c.check_hicache_events()
    assert not c.linker.pending_offloads
    c.linker.close()

    c, linker, p = cache()
    request = Req("r", "", tokens, SamplingParams())
    found = c.match_prefix(MatchPrefixParams(key=RadixKey(tokens, None), req=request))
    assert found.host_hit_length == len(tokens)
    request.last_node = found.last_device_node
    n, _ = c.linker.load_back(request)
    assert n == len(tokens)
    where = c.linker.private_load_indices["r"]
    index = c.linker.start_layer_wise_loading()
    assert index == 0
    assert c.linker.finish_loads() == []
    assert all(torch.equal(b[where], w) for b, w in zip(buffers(linker), want, strict=True))
    c.reset()  # the call that Scheduler.flush_cache makes
    assert c.match_prefix(MatchPrefixParams(key=RadixKey(tokens, None), req=request)).host_hit_length == 0
