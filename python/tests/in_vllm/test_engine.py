"""Runs vLLM on a CPU with kvlane: loaded KV equals stored KV, also after kills, restarts and
damaged files."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

POOL = {"cache_bytes": 64 << 20, "admission": "always"}  # always: a tiny model computes faster than it loads
RESET = {"reset": True}
DTYPE = {"llama": "float32", "mla": "bfloat16", "hybrid": "float32"}


def prompt(seed: int, n: int = 300) -> list[int]:
    return random.Random(seed).choices(range(3, 512), k=n)


def ask(*prompts: list[int], tokens: int = 8) -> dict[str, Any]:
    return {"prompts": list(prompts), "tokens": tokens}


DRAIN = ask([5], tokens=32)  # stores no block; its steps let the earlier jobs finish and be reported


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Compares tokens and log probabilities. Equal log probabilities show that the KV was equal
    bit for bit."""
    assert a["tokens"] == b["tokens"]
    assert a["logprobs"] == b["logprobs"]
    assert set(a["reasons"] + b["reasons"]) == {"length"}


def drained(stats: dict[str, Any]) -> None:
    """No job is left, and every block that entered the pool is still there or was counted when it
    left."""
    assert stats["jobs"] == 0
    assert stats["stored"] + stats["from_files"] == stats["blocks"] + stats["evicted"] + stats["forgotten"]


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 4096)


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


# The reference is a hit in vLLM's own prefix cache, whose KV never left the device.
@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("name", list(DTYPE))
def test_stored_reset_loaded(start: Any, name: str, layerwise: bool) -> None:
    p = prompt(1)
    ran = start(
        [ask(p), ask(p), RESET, ask(p), {"reset": "all"}, ask(p)],
        name=name, kvlane={"store": POOL}, dtype=DTYPE[name], layerwise=layerwise,
    ).ended()  # fmt: skip
    computed, kept, _, loaded, _, anew = ran.steps
    assert computed["cached"] == [0]
    assert kept["cached"][0] >= 256
    assert loaded["cached"] == kept["cached"]
    same(loaded, kept)
    assert anew["cached"] == [0], "what was stored before the connector's reset is not to be found"
    same(anew, computed)
    within = layerwise and name != "hybrid"  # several page groups: vLLM has no way to report failed loads within a step
    assert loaded["jobs"] == [["load", within]]
    assert ["store", within] in computed["jobs"]
    assert ("KV is not moved layer by layer" in ran.text) == (layerwise and not within)
    stats = ran.stats("from_pool")
    assert stats["from_pool"] >= 256 // 32
    assert stats["forgotten"] == stats["from_files"] == 0


# Blocks that do not fit on a full disk still hit in the pool, and one warning is logged.
def test_a_full_disk_is_no_miss(start: Any, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(5 << 20))
    prompts = [prompt(seed, 320) for seed in range(6)]
    store = {"store": POOL | {"dirs": [str(small_disk / "kv")]}}
    steps = [*(ask(p) for p in prompts), DRAIN, RESET, *(ask(p) for p in prompts)]
    ran = start(steps, kvlane=store).ended()
    again = ran.steps[-len(prompts) :]
    assert all(step["cached"][0] >= 288 for step in again), [step["cached"] for step in again]
    for first, second in zip(ran.steps, again, strict=False):
        assert first["tokens"] == second["tokens"]
    assert ran.text.count("could not be written to files (NO_SPACE)") == 1
    assert "blocks failed" not in ran.text
    assert ran.stats("from_pool")["forgotten"] == 0


# A second process finds the blocks in files. A damaged block is recomputed and stored again.
def test_restarted_and_damaged(start: Any, tmp_path: Path) -> None:
    p, store = prompt(2), {"store": POOL | {"dirs": [str(tmp_path / "kv")]}}
    first, kept = start([ask(p), ask(p)], kvlane=store).ended().steps
    ran = start([ask(p)], kvlane=store).ended()
    same(ran.steps[0], kept)
    assert ran.steps[0]["cached"] == kept["cached"]

    damage(random.Random(3).choice(files(tmp_path / "kv")))
    ran = start([ask(p), RESET, ask(p)], kvlane=store, processes=True).ended()
    again, _, after = ran.steps
    assert again["tokens"] == first["tokens"]
    assert "CORRUPT" in ran.text
    assert "Recovered from KV load failure" in ran.text
    same(after, kept)
    assert after["cached"] == kept["cached"]
    assert ran.stats("from_pool")["forgotten"] == 1

    other = start([ask(p)], kvlane=store, hf_overrides={"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}).ended()
    assert other.steps[0]["cached"] == [0], "other rotary embeddings, other KV"


# A damaged block is found during the step that needs it. It affects the request that loads it and
# the requests of the same step that share its prefix. Recomputing takes several steps.
def test_damaged_within_a_step(start: Any, tmp_path: Path) -> None:
    p, store = prompt(2), {"store": POOL | {"dirs": [str(tmp_path / "kv")]}}
    prompts = [p, p + prompt(7, 40), p[:290] + prompt(8, 60), prompt(9)]
    few = {"max_num_batched_tokens": 96, "kvlane": store | {"layerwise_files": True}, "layerwise": True}
    expected, kept = start([ask(*prompts), ask(*prompts)], **few).ended().steps
    found = files(tmp_path / "kv")
    for file in random.Random(3).sample(found, 3):
        damage(file)
    ran = start([ask(*prompts), ask(*prompts), RESET, ask(*prompts)], **few).ended()
    again, after, _, loaded = ran.steps
    for step in (again, after, loaded, kept):
        assert step["tokens"] == expected["tokens"]
    assert "CORRUPT" in ran.text
    assert "Recovered from KV load failure" in ran.text
    assert ["load", True] in again["jobs"]
    assert ["load", True] in loaded["jobs"]
    assert sum(loaded["cached"]) > 0
    assert ran.stats("from_pool")["forgotten"] >= 1
    assert len(files(tmp_path / "kv")) >= len(found), "what was damaged is stored anew"


# Blocks in files are fetched while other requests are computed, outside any step. Blocks in memory
# are loaded layer by layer within a step.
def test_files_do_not_delay_a_step(start: Any, tmp_path: Path) -> None:
    p, store = prompt(2), {"store": POOL | {"dirs": [str(tmp_path / "kv")]}}
    _, kept = start([ask(p), ask(p)], kvlane=store, layerwise=True).ended().steps
    ran = start([ask(p), RESET, ask(p)], kvlane=store, layerwise=True).ended()
    brought, _, loaded = ran.steps
    for step in (brought, loaded):
        same(step, kept)
        assert step["cached"] == kept["cached"]
    assert brought["jobs"][0] == ["load", False]
    assert ["load", True] not in brought["jobs"]
    assert loaded["jobs"] == [["load", True]]
    assert ran.stats("from_pool")["from_files"] >= 256 // 32


# Intact files hit after a restart. With several page groups a page's number does not determine its
# group, so a request with damaged files is recomputed from its start.
def test_restarted_and_damaged_with_several_page_groups(start: Any, tmp_path: Path) -> None:
    p, store = prompt(6), {"store": POOL | {"dirs": [str(tmp_path / "kv")]}}
    first, kept = start([ask(p), ask(p)], name="hybrid", kvlane=store).ended().steps
    ran = start([ask(p)], name="hybrid", kvlane=store).ended()
    same(ran.steps[0], kept)
    assert ran.steps[0]["cached"] == kept["cached"]
    assert kept["cached"][0] >= 256
    assert ran.stats("from_pool")["from_files"] >= 256 // 32
    for file in files(tmp_path / "kv"):
        damage(file)
    ran = start([ask(p), RESET, ask(p)], name="hybrid", kvlane=store).ended()
    again, _, after = ran.steps
    assert again["tokens"] == first["tokens"]
    assert "CORRUPT" in ran.text
    same(after, kept)
    assert after["cached"] == kept["cached"]


# Concurrent requests that share prefixes need ten times the blocks that the pool holds.
def test_many_requests_and_a_small_pool(start: Any) -> None:
    prefixes = [prompt(100 + i, 128) for i in range(10)]
    prompts = [prefixes[i % 10] + prompt(i, 160) for i in range(50)]
    blocks = 10 * 4 + 50 * 5
    bytes_of_block = 4 * 2 * 2 * 64 * 4 * 32 + 4096
    ran = start(
        [ask(*prompts), RESET, ask(*prompts), RESET, ask(*reversed(prompts)), DRAIN],
        kvlane={"store": POOL | {"cache_bytes": bytes_of_block * blocks // 10}}, max_num_seqs=50,
    ).ended()  # fmt: skip
    first, _, second, _, third, _ = ran.steps
    assert second["tokens"] == first["tokens"]
    assert third["tokens"] == first["tokens"][::-1]
    assert set(first["reasons"] + second["reasons"] + third["reasons"]) == {"length"}
    stats = ran.stats("from_pool")
    drained(stats)
    assert stats["blocks"] <= blocks // 10
    assert stats["forgotten"] == 0
    assert stats["evicted"] > blocks


# vLLM's pages hold half of the running requests, so it preempts requests repeatedly. They resume
# from stored blocks.
def test_preempted(start: Any) -> None:
    prompts = [prompt(i, 200) for i in range(8)]
    asked = ask(*prompts, tokens=60)
    (expected,) = start([asked]).ended().steps
    ran = start([asked, RESET, asked, DRAIN], kvlane={"store": POOL}, num_gpu_blocks_override=36).ended()
    first, _, second, _ = ran.steps
    for step in (first, second):
        assert step["preempted"] > 0
        assert step["tokens"] == expected["tokens"]
        assert ["load", False] in step["jobs"]
    assert expected["preempted"] == 0
    drained(ran.stats("from_pool"))


# The engine is killed at random moments. Afterwards all hits are correct and no shared memory is
# left. With multiprocessing, the scheduler and worker are also killed while the front end survives.
@pytest.mark.parametrize(("processes", "kills"), [(False, 2), (True, int(os.environ.get("KVLANE_KILLS", "5")))])
def test_killed(start: Any, tmp_path: Path, processes: bool, kills: int) -> None:
    prompts = [prompt(i, 250) for i in range(12)]
    expected = start([ask(*prompts, tokens=16)]).ended().steps[0]
    shared = shared_memory()
    store = {"store": POOL | {"cache_bytes": 4 << 20, "dirs": [str(tmp_path / "kv")]}}
    seed = int(os.environ.get("KVLANE_SEED", "1"))
    for i in range(kills):
        how = {"kvlane": store, "processes": processes, "layerwise": i % 3 == 2}
        engine = start([ask(*prompts, tokens=16), RESET] * 1000, **how)
        engine.has_printed("STEP" if i % 2 == 0 else "UP")
        time.sleep(random.Random(seed + i).uniform(0, 5))
        if processes and i % 2 == 0:
            engine.kill_core()
            engine.kill()
        else:
            assert engine.kill(), engine.text()[-4000:]
        for line in engine.text().splitlines():
            if line.startswith("STEP ") and "tokens" in (step := json.loads(line[5:])):
                assert step["tokens"] == expected["tokens"]
    ran = start([ask(*prompts, tokens=16), RESET, ask(*prompts, tokens=16), DRAIN], kvlane=store, processes=processes).ended()
    assert ran.steps[0]["tokens"] == expected["tokens"]
    assert ran.steps[2]["tokens"] == expected["tokens"]
    assert sum(ran.steps[0]["cached"]) > 0
    drained(ran.stats("from_pool"))
    assert shared_memory() == shared
    assert not [f for f in (tmp_path / "kv").rglob("tmp/*/*") if f.stat().st_size], "what a killed process was writing stays"


def shared_memory() -> list[str]:
    """Returns kvlane's files in /dev/shm."""
    return sorted(p.name for p in Path("/dev/shm").iterdir() if "kvlane" in p.name)


# Two workers have their own heads, pools and files. A block that one of them finds damaged is
# recomputed by both.
def test_two_workers(start: Any, tmp_path: Path) -> None:
    p, store = prompt(4), {"store": POOL | {"dirs": [str(tmp_path / "kv")]}}
    both = {"kvlane": store, "processes": True, "tensor_parallel_size": 2}
    first, kept, _, loaded = start([ask(p), ask(p), RESET, ask(p)], **both).ended().steps
    assert loaded["cached"] == kept["cached"]
    same(loaded, kept)
    assert len(list((tmp_path / "kv").iterdir())) == 2, "a directory for each range of heads"
    damage(random.Random(5).choice(files(tmp_path / "kv")))
    ran = start([ask(p), RESET, ask(p)], **both).ended()
    again, _, after = ran.steps
    assert again["tokens"] == first["tokens"]
    assert "CORRUPT" in ran.text
    same(after, kept)
    assert ran.stats("from_pool")["forgotten"] == 1


# Two workers have the same KV. Each loads from its own memory, one of them writes files, and both
# read these after a restart.
def test_two_workers_with_the_same_kv(start: Any, tmp_path: Path) -> None:
    p, folder = prompt(4), tmp_path / "kv"
    both = {"name": "mla", "dtype": "bfloat16", "processes": True, "tensor_parallel_size": 2}
    both["kvlane"] = {"store": POOL | {"dirs": [str(folder)]}}
    ran = start([ask(p), ask(p), RESET, ask(p)], **both).ended()
    _, kept, _, loaded = ran.steps
    assert loaded["cached"] == kept["cached"]
    same(loaded, kept)
    assert ran.text.count("rank 1 has the KV of another rank") == 1
    assert len(list(folder.iterdir())) == 1, "one directory for both"
    assert len(list(folder.glob("*/tmp/*"))) <= 1, "one of them writes"
    assert ran.stats("from_pool")["forgotten"] == 0
    ran = start([ask(p)], **both).ended()
    same(ran.steps[0], kept)
    assert ran.steps[0]["cached"] == kept["cached"]
    assert ran.stats("from_pool")["from_files"] >= 256 // 32
