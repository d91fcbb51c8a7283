"""Tests writes that fail: blocks stay in memory, and the failures are counted and logged at a
limited rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_store import arrays, keys_of

import kvlane
from kvlane._writes import LOG_SECONDS, LimitedLog, Writes

BLOCKS = 32
LOGGER = logging.getLogger("kvlane")


def test_a_failure_is_logged_once_in_a_while_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LimitedLog(LOGGER, lambda: now[0])
    for _ in range(5):
        log.add("store: NO_SPACE", 3, "%d pages")
    log.add("load: CORRUPT", 1, "%d others")
    now[0] = LOG_SECONDS
    log.add("store: NO_SPACE", 2, "%d pages")
    assert log.counts == {"store: NO_SPACE": 17, "load: CORRUPT": 1}
    assert [r.getMessage().partition(" (")[0] for r in caplog.records] == ["3 pages", "1 others", "14 pages"]


def test_a_full_disk_is_no_miss(
    small_disk: Path, open_store: Callable[..., kvlane.Store], caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks stay in memory, and writing resumes once there is space."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(5 << 20))
    # A block has 1,536 bytes of KV, so these blocks exceed the free space.
    store = open_store(store={"dirs": [str(small_disk / "d")]})
    writes = Writes(LOGGER)
    kv = arrays(BLOCKS)
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        failed = []
        for n in range(100):
            keys = keys_of(store, BLOCKS, n)
            task = store.dump(cache, keys, range(BLOCKS))
            task.published(60)
            writes.add(task)
            if n % 10 == 0:
                writes.finish(60)
            assert store.lookup(keys) == bytes([1]) * BLOCKS, "in memory, whatever the disk has"
            if writes.counts:
                failed.append(keys)
                if len(failed) == 3:
                    break
        writes.finish(60)
        assert writes.counts["NO_SPACE"] > 0
        assert len(caplog.records) == 1
        for keys in failed:
            store.load(cache, keys, range(BLOCKS)).result(60)
        filler.unlink()
        end = time.monotonic() + 600
        for n in range(1000, 1 << 30):  # until the pause in writing ends
            task = store.dump(cache, keys_of(store, 1, n), [0])
            task.wait()
            if task.results()[0].status == kvlane.Status.OK:
                break
            assert time.monotonic() < end
            time.sleep(0.05)
