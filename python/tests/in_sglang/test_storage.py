"""Drives kvlane.sglang.Storage through SGLang's host pools and classes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvlane import errors

from .pools import LAYERS, PAGE, TOKENS, device_pool, extra, fill, flip, hashes, host_pool

FORMS = [(layout, mla) for mla in (False, True) for layout in ("layer_first", "page_first", "page_first_direct")]


def indices(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def page(pool: Any, number: int) -> torch.Tensor:
    out: torch.Tensor = pool.get_data_page(number * PAGE)
    return out.clone()


@pytest.mark.parametrize(("layout", "mla"), [*FORMS, ("page_head", False)])
def test_pages_come_back_bit_by_bit(storage: Any, layout: str, mla: bool) -> None:
    pool = host_pool(layout, mla)
    s = storage(pool, extra(), mla)
    fill(pool.kv_buffer)
    keys = hashes(5)
    before = [page(pool, p) for p in (3, 9, 1, 20, 32)]
    untouched = page(pool, 2)
    assert s.batch_exists(keys) == 0
    assert s.batch_set_v1(keys, indices(3, 9, 1, 20, 32)) == [True] * 5
    assert s.batch_set_v1(keys[:2], indices(3, 9)) == [True] * 2, "what is there already is stored"
    assert s.batch_exists(keys) == 5
    assert s.batch_exists([*keys[:2], "0" * 64, *keys[2:]]) == 2
    assert s.exists(keys[4])
    for p in (3, 9, 1, 20, 32):
        pool.set_from_flat_data_page(p * PAGE, torch.zeros_like(before[0]))
    assert s.batch_get_v1(keys, indices(10, 11, 12, 13, 14)) == [True] * 5
    for p, want in zip((10, 11, 12, 13, 14), before, strict=True):
        assert torch.equal(page(pool, p), want)
    assert torch.equal(page(pool, 2), untouched)


@pytest.mark.parametrize("second", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_the_end_of_a_prompt_goes_first(storage: Any, layout: str, second: bool) -> None:
    """Blocks are evicted from the end of a prompt first. The pages of a call continue the prefix
    that SGLang passes."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer

    pool = host_pool(layout)
    image = 4096 * (1 + 2 * (LAYERS if layout == "layer_first" else 1))  # a header, then each piece
    config = extra()
    config["kvlane"]["store"]["cache_bytes"] = 16 * image
    s = storage(pool, config)
    prompt, other = hashes(12), hashes(12, seed=1)

    def store(keys: list[str], before: list[str]) -> None:
        where, known = indices(*range(len(keys))), HiCacheStorageExtraInfo(prefix_keys=before or None)
        if second:
            assert s.batch_set_v2([PoolTransfer(PoolName.KV, where, keys=keys)], known) == {"kv": [True] * len(keys)}
        else:
            assert s.batch_set_v1(keys, where, known) == [True] * len(keys)

    for i in range(0, 12, 4):
        store(prompt[i : i + 4], prompt[:i])
    store(other, [])
    assert [s.exists(k) for k in prompt] == [i < 4 for i in range(12)]


def test_a_miss_is_false_for_its_page_alone(storage: Any) -> None:
    pool = host_pool("page_first")
    s = storage(pool, extra())
    fill(pool.kv_buffer)
    keys = hashes(3)
    before, untouched = page(pool, 0), page(pool, 6)
    assert s.batch_set_v1([keys[0], keys[2]], indices(0, 2)) == [True, True]
    assert s.batch_get_v1(keys, indices(5, 6, 7)) == [True, False, True]
    assert torch.equal(page(pool, 5), before)
    assert torch.equal(page(pool, 6), untouched)
    assert s.pages.failures.counts == {"load: NOT_FOUND": 1}


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_the_old_interface_and_the_new_find_each_others_pages(storage: Any, layout: str) -> None:
    pool = host_pool(layout)
    s = storage(pool, extra())
    fill(pool.kv_buffer)
    keys = hashes(2)
    first, second = page(pool, 1), page(pool, 2)
    assert s.batch_set([keys[0]], [pool.get_data_page(PAGE)])
    assert s.batch_get_v1([keys[0]], indices(8)) == [True]
    assert torch.equal(page(pool, 8), first)
    assert s.batch_set_v1([keys[1]], indices(2)) == [True]
    got = s.batch_get([keys[1], "f" * 64], [pool.get_dummy_flat_data_page(), pool.get_dummy_flat_data_page()])
    assert torch.equal(got[0], second)
    assert got[1] is None
    with pytest.raises(errors.Invalid, match="one piece"):
        s.set(keys[0], torch.zeros(3))


def test_a_restart_finds_the_pages_in_files(storage: Any, tmp_path: Path) -> None:
    pool = host_pool("page_first")
    s = storage(pool, extra(tmp_path))
    fill(pool.kv_buffer)
    keys, before = hashes(4), [page(pool, p) for p in range(4)]
    assert all(s.batch_set_v1(keys, indices(0, 1, 2, 3)))
    s.close()
    pool.kv_buffer.zero_()
    again = storage(pool, extra(tmp_path))
    assert again.batch_exists(keys) == 4
    assert all(again.batch_get_v1(keys, indices(4, 5, 6, 7)))
    assert all(torch.equal(page(pool, 4 + i), want) for i, want in enumerate(before))


def test_a_restart_finds_the_pages_in_block_servers(storage: Any) -> None:
    """Calls after the restart start within the prompt."""
    if not os.environ.get("KVLANE_BINARY"):
        (pytest.fail if "sglang" in os.environ.get("KVLANE_REQUIRE", "").split(",") else pytest.skip)("KVLANE_BINARY is not set")
    command = [sys.executable, "-m", "kvlane", "blockd", "--listen", "127.0.0.1:0", "--cache-bytes", "64MiB"]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        addresses = []
        for server in servers:
            assert server.stdout is not None
            addresses += re.findall(r"^block server (\S+);", server.stdout.readline())
        config = extra()
        config["kvlane"]["store"]["remote"] = ",".join(addresses)
        pool = host_pool("page_first")
        s = storage(pool, config)
        fill(pool.kv_buffer)
        keys, before = hashes(8), [page(pool, p) for p in range(8)]
        assert all(s.batch_set_v1(keys, indices(*range(8))))
        s.close()
        pool.kv_buffer.zero_()
        again = storage(pool, config)
        assert again.batch_exists(keys[3:]) == 5
        assert all(again.batch_get_v1(keys[3:], indices(*range(8, 13))))
        assert all(torch.equal(page(pool, 8 + i), want) for i, want in enumerate(before[3:]))
        again.close()
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def test_names_that_differ_are_pages_that_differ() -> None:
    from kvlane.sglang.pages import digest

    name = "ab" * 32
    names = [name, name.upper(), " " + name, name[:-2], "caf\udce9", "caf\udce8", "caf?"]
    assert len({digest(n) for n in names}) == len(names)


def test_a_full_disk_is_reported_and_is_no_miss(storage: Any, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pages that were not written to files are reported as False, but still hit in memory."""
    from kvlane.sglang.pages import Part
    from kvlane.sglang.storage import KV

    (small_disk / "filler").write_bytes(bytes(5 << 20))
    pool = host_pool("page_first")
    s = storage(pool, extra(small_disk / "d"))
    fill(pool.kv_buffer)
    before, stored, keys = page(pool, 0), True, []
    for seed in range(1000):
        keys = hashes(16, seed)
        if not all(s.batch_set_v1(keys, indices(*range(16)))):
            stored = False
            break
    assert not stored
    assert s.pages.failures.counts["store: NO_SPACE"] > 0
    assert s.batch_exists(keys) == 16
    assert all(s.batch_get_v1(keys, indices(*range(16, 32))))
    assert torch.equal(page(pool, 16), before)
    # Dumps without waiting for files, as a Linker does.
    more = hashes(16, 5000)
    assert all(s.pages.dump([Part(KV, more, list(range(16)))])[0])
    s.pages.writes.finish(60)
    assert s.pages.stats()["not_written"]["NO_SPACE"] > 0
    assert s.batch_exists(more) == 16
    assert len([r for r in caplog.records if "NO_SPACE" in r.getMessage()]) <= 2, "one of each kind"


def test_a_damaged_page_is_a_miss_and_stored_anew(storage: Any, tmp_path: Path) -> None:
    pool = host_pool("page_first")
    s = storage(pool, extra(tmp_path))
    fill(pool.kv_buffer)
    keys = hashes(3)
    assert all(s.batch_set_v1(keys, indices(0, 1, 2)))
    s.close()
    assert flip(tmp_path) >= 3
    again = storage(pool, extra(tmp_path))
    assert again.batch_get_v1(keys, indices(4, 5, 6)) == [False] * 3
    assert sum(again.pages.failures.counts.values()) == 3
    assert again.batch_exists(keys) == 0
    assert again.batch_set_v1(keys, indices(0, 1, 2)) == [True] * 3
    assert again.batch_get_v1(keys, indices(4, 5, 6)) == [True] * 3
    assert torch.equal(page(pool, 5), page(pool, 1))


def test_nothing_old_is_found_after_a_flush(storage: Any, tmp_path: Path) -> None:
    """SGLang flushes its cache and clears the pool whenever the weights change. After a restart
    the original weights are in use again, and so is their KV."""
    pool = host_pool("page_first")
    s = storage(pool, extra(tmp_path))
    keys = hashes(2)
    for i, flush in enumerate((pool.clear, s.clear, lambda: None)):
        fill(pool.kv_buffer, i)
        assert s.batch_exists(keys) == 0
        assert s.batch_get_v1(keys, indices(4, 5)) == [False] * 2
        assert s.batch_get(keys, [pool.get_dummy_flat_data_page()] * 2) == [None] * 2
        assert s.batch_set_v1(keys, indices(0, 1)) == [True] * 2
        want = page(pool, 1)
        assert s.batch_get_v1(keys, indices(4, 5)) == [True] * 2
        assert torch.equal(page(pool, 5), want)
        flush()
    s.close()
    pool.clear()
    s = storage(pool, extra(tmp_path))
    assert s.batch_get_v1(keys, indices(4, 5)) == [True] * 2
    fill(pool.kv_buffer, 0)
    want = page(pool, 1)
    assert s.batch_get_v1(keys, indices(4, 5)) == [True] * 2
    assert torch.equal(page(pool, 5), want)
    pool.clear()
    assert s.batch_exists(keys) == 0, "of the weights that another process was given"


def test_ranks_that_share_files_do_so_after_a_flush(storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.runtime_context import get_parallel

    from kvlane.sglang import config

    asked: list[Any] = []

    def nonce(group: Any) -> bytes:
        asked.append(group)
        return bytes(32)

    monkeypatch.setattr(config, "nonce", nonce)
    with get_parallel().override(tp_group=SimpleNamespace(cpu_group="ranks"), attn_dp_enabled=False):
        pools = [host_pool("page_first", mla=True) for _ in range(2)]
        first, second = (storage(p, extra(tmp_path), mla=True, tp_size=2, tp_rank=rank) for rank, p in enumerate(pools))
    storage(host_pool("page_first"), extra(tmp_path), tp_size=2)
    assert asked == ["ranks", "ranks", None]
    for pool in pools:
        pool.clear()
    fill(pools[0].kv_buffer)
    assert first.batch_set_v1(hashes(1), indices(0)) == [True]
    first.close()  # closing writes everything to files
    assert second.batch_get_v1(hashes(1), indices(3)) == [True]
    assert torch.equal(page(pools[1], 3), page(pools[0], 0))


def _nonce(rank: int, path: str, out: Any) -> None:
    from kvlane.sglang.config import nonce

    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    out.put((nonce(torch.distributed.group.WORLD), nonce(None)))
    torch.distributed.destroy_process_group()


def test_the_ranks_of_a_group_agree(tmp_path: Path) -> None:
    processes = torch.multiprocessing.get_context("spawn")
    out = processes.Queue()
    both = [processes.Process(target=_nonce, args=(rank, str(tmp_path / "ranks"), out)) for rank in range(2)]
    for p in both:
        p.start()
    (shared, own), (other_shared, other_own) = out.get(timeout=600), out.get(timeout=120)
    for p in both:
        p.join(30)
    assert shared == other_shared
    assert len({shared, own, other_own}) == 3


@pytest.mark.parametrize(
    "other",
    [{"layout": "page_first"}, {"tp_size": 2}, {"tp_size": 2, "tp_rank": 1}, {"pp_size": 2}, {"tenant": "b"}, {"weights": "b"}],
)
def test_other_kv_is_never_found(storage: Any, tmp_path: Path, other: dict[str, Any]) -> None:
    pool = host_pool("layer_first")
    s = storage(pool, extra(tmp_path))
    assert all(s.batch_set_v1(hashes(1), indices(0)))
    s.close()
    layout = other.pop("layout", "layer_first")
    options = {k: other.pop(k) for k in ("tenant", "weights") if k in other}
    s = storage(host_pool(layout), extra(tmp_path, **options), **other)
    assert s.batch_exists(hashes(1)) == 0
    s.close()
    assert storage(host_pool("layer_first"), extra(tmp_path)).batch_exists(hashes(1)) == 1


def test_several_pools_go_by_their_own_policies(storage: Any) -> None:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer

    from kvlane.sglang import Storage

    pools = {PoolName.KV: host_pool("layer_first", mla=True), PoolName.SWA: host_pool("page_first")}
    s = Storage(HiCacheStorageConfig(0, 1, 0, 1, 0, 1, True, False, False, "m", extra_config=extra()), {})
    s.register_mem_pool_host(pools[PoolName.KV])
    for name, pool in pools.items():
        s.register_mem_host_pool_v2(pool, name)
        fill(pool.kv_buffer, 1)
    s.on_host_pools_registered()
    keys, every = hashes(6), indices(0, 1, 2, 3, 4, 5)
    swa = [page(pools[PoolName.SWA], p) for p in (2, 3)]
    kv = page(pools[PoolName.KV], 1)
    stored = s.batch_set_v2([
        PoolTransfer(PoolName.KV, host_indices=every, keys=keys),
        PoolTransfer(PoolName.SWA, host_indices=indices(2, 3), keys=keys[2:4]),
        PoolTransfer(PoolName.MAMBA, host_indices=indices(0), keys=keys[:1]),
    ])  # fmt: skip
    assert stored == {"kv": [True] * 6, "swa": [True] * 2, "mamba": [False]}
    trailing = PoolTransfer(PoolName.SWA, keys=["", ""], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = s.batch_exists_v2(keys, [trailing])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert s.batch_exists_v2(keys).kv_hit_pages == 6
    assert s.batch_exists_v2(keys, [PoolTransfer(PoolName.SWA)]).kv_hit_pages == 0
    got = s.batch_get_v2([
        PoolTransfer(PoolName.KV, host_indices=indices(7, 8), keys=keys[:2]),
        PoolTransfer(PoolName.SWA, host_indices=indices(9, 10), keys=keys[2:4]),
    ])  # fmt: skip
    assert got == {"kv": [True] * 2, "swa": [True] * 2}
    assert torch.equal(page(pools[PoolName.KV], 8), kv)
    assert [torch.equal(page(pools[PoolName.SWA], 9 + i), want) for i, want in enumerate(swa)] == [True, True]
    s.close()
    with pytest.raises(errors.Closed):
        s.batch_exists(keys)


def test_pages_stay_from_lookup_to_load(storage: Any) -> None:
    pool = host_pool("page_first")
    config = extra()
    config["kvlane"]["store"]["cache_bytes"] = 160 << 10
    s = storage(pool, config)
    fill(pool.kv_buffer)
    keys, want = hashes(3), page(pool, 2)
    assert all(s.batch_set_v1(keys, indices(0, 1, 2)))
    assert s.batch_exists([*keys, "d" * 64]) == 3
    for other in hashes(60, seed=50):  # more pages than the memory tier holds, to evict the earlier ones
        s.batch_set_v1([other], indices(3))
    assert s.batch_get_v1(keys, indices(5, 6, 7)) == [True] * 3
    assert torch.equal(page(pool, 7), want)
    assert s.pages.stats()["sglang_leases"] == {"held": 0, "taken": 1, "loaded": 1}
    for _ in range(2):
        assert s.batch_exists(keys) == 3
    assert s.pages.stats()["sglang_leases"] == {"held": 1, "taken": 3, "loaded": 1, "replaced": 1}


def test_leases_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvlane.sglang import leases

    ended: list[int] = []

    class FakeLease:
        def __init__(self, number: int) -> None:
            self.number = number

        def release(self) -> None:
            ended.append(self.number)

    held: Any = leases.Leases()
    for i in range(leases.MOST + 1):
        held.keep(str(i), FakeLease(i))
    assert ended == [0]
    held.keep("1", FakeLease(-1))
    held.release("2", "loaded")
    held.release("2", "loaded")
    assert ended == [0, 1, 2]
    assert held.stats() == {"held": 63, "taken": 66, "crowded_out": 1, "replaced": 1, "loaded": 1}
    held.clear("closed")
    monkeypatch.setattr(leases, "SECONDS", 0.0)
    held.keep("a", FakeLease(-2))
    assert held.stats() == {"held": 0, "taken": 67, "crowded_out": 1, "replaced": 1, "loaded": 1, "closed": 63, "expired": 1}
    assert ended[-1] == -2


def test_hicache_backs_up_and_prefetches(model: Path, tmp_path: Path) -> None:
    """SGLang's controller writes pages in its backup thread, and reads them in its prefetch
    threads."""
    import threading

    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.runtime_context import get_parallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        pool, device = host_pool("page_first"), device_pool()
        allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.bfloat16, "cpu", device, False)
        with get_parallel().override(tp_rank=0, pp_rank=0, attn_dcp_rank=0):
            c = HiCacheController(
            allocator, pool, PAGE, torch.distributed.group.WORLD, threading.Event(), storage_backend="dynamic",
            prefetch_threshold=PAGE, model_name=str(model), storage_backend_extra_config=extra(tmp_path / "blocks"),
        )  # fmt: skip
        assert c.page_get_func == c._page_get_zero_copy
        fill(pool.kv_buffer)
        tokens = list(range(6 * PAGE))
        host = pool.alloc(len(tokens))
        before = [page(pool, int(host[i * PAGE]) // PAGE) for i in range(6)]
        c.write_storage(host, tokens, c.get_hash_str(tokens, None, page_size=PAGE))
        done = c.ack_backup_queue.get(timeout=600)
        assert done.completed_tokens == len(tokens)
        pool.free(host)
        pool.kv_buffer.zero_()
        hashes_found, n = c._storage_hit_query(_Operation(tokens))
        assert n == len(tokens)
        host = pool.alloc(len(tokens))
        got = c.page_get_func(_Operation(tokens), hashes_found, host)
        assert got == 6
        assert all(torch.equal(page(pool, int(host[i * PAGE]) // PAGE), want) for i, want in enumerate(before))
        c.reset()  # the call by which UnifiedRadixCache.reset flushes SGLang's cache
        c.mem_pool_host.clear()
        assert c._storage_hit_query(_Operation(tokens)) == ([], 0)
        c.detach_storage_backend()
    finally:
        torch.distributed.destroy_process_group()


class _Operation:
    """The fields of a prefetch operation that the controller's query reads."""

    def __init__(self, tokens: list[int]) -> None:
        self.token_ids, self.last_hash, self.prefix_keys, self.request_id = tokens, None, None, "r"


@pytest.mark.parametrize(
    ("config", "more", "error", "words"),
    [
        ({}, {}, errors.Invalid, 'object "kvlane"'),
        ({"kvlane": {"stores": {}}}, {}, errors.Invalid, "stores"),
        (extra(), {"mla": True, "tp_size": 2}, errors.Invalid, "dirs"),
        (extra(), {"should_split_heads": True}, errors.NotSupported, "tp_lcm_size"),
    ],
)
def test_what_cannot_work_is_refused(
    storage: Any, config: dict[str, Any], more: dict[str, Any], error: type[Exception], words: str
) -> None:
    named = {"backend_name": "kvlane", "module_path": "kvlane.sglang", "class_name": "Storage"} | config
    with pytest.raises(error, match=words):
        storage(host_pool("layer_first"), named, **more)


def test_unknown_weights_are_refused_with_files(storage: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="weights"):
        storage(host_pool("layer_first"), extra(tmp_path), model_name="nobody/knows")
    storage(host_pool("layer_first"), extra(tmp_path, weights="a1b2"), model_name="nobody/knows")


def test_indices_that_are_no_pages_are_refused(storage: Any) -> None:
    s = storage(host_pool("layer_first"), extra())
    for wrong in (torch.arange(1, PAGE + 1), torch.arange(PAGE - 1), torch.arange(PAGE).flip(0)):
        with pytest.raises(errors.Invalid, match="indices"):
            s.batch_set_v1(hashes(1), wrong)


def test_an_unknown_release_is_refused() -> None:
    from kvlane.sglang import ADAPTERS

    assert ADAPTERS.module("0.5.23").endswith("v0_5_23")
    with pytest.raises(errors.NotSupported, match=r"0\.5\.24"):
        ADAPTERS.module("0.5.24")
