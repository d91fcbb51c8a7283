"""Tests a Manager together with workers in processes of their own, which carry out its jobs."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HEADS, LAYERS, SIZE, TOKENS, config

import kvlane
from kvlane.manager import ABSENT, BELOW, THERE, UNDER_WAY

PAGES = 16
RANKS = 2


def rank_config(rank: int, root: Path) -> dict[str, Any]:
    model = {"kv_heads": HEADS, "tp_size": RANKS, "tp_rank": rank}
    return config(model={**config()["model"], **model}, store={"dirs": [str(root / str(rank))]})


def content(rank: int) -> Any:
    shape = (LAYERS, 2, PAGES, TOKENS, HEADS // RANKS, SIZE)
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


def work(rank: int, root: Path, orders: Connection) -> None:
    """Runs a worker: dumps blocks from its pages, loads them into zeroed pages and compares.
    Replies with the indices that failed."""
    kv, want = content(rank), content(rank)
    with kvlane.Store(rank_config(rank, root)) as store, kvlane.PagedCache(store, kv, "lkp") as cache:
        while order := orders.recv():
            what, hashes, evicted = order
            if evicted:
                store.drop(store.keys(b"".join(evicted), hash_bytes=16))
            keys = store.keys(b"".join(hashes), hash_bytes=16)
            pages = [h[0] for h in hashes]  # each block has its own page
            if what == "store":
                store.dump(cache, keys, pages).result(30)
                orders.send([])
                continue
            kv[:, :, pages] = 0
            task = store.load(cache, keys, pages)
            assert task.wait(30)
            failed = [i for i, r in enumerate(task.results()) if r.status != kvlane.Status.OK]
            wrong = [i for i, p in enumerate(pages) if i not in failed and not np.array_equal(kv[:, :, p], want[:, :, p])]
            kv[:] = want
            orders.send(failed if not wrong else ["wrong", wrong])


class Engine:
    """An engine's scheduler with its workers."""

    def __init__(self, root: Path, blocks: int | None = None) -> None:
        context = mp.get_context("spawn")
        self.manager = kvlane.Manager([rank_config(r, root) for r in range(RANKS)], blocks)
        self.orders, self.processes = [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            p = context.Process(target=work, args=(rank, root, theirs), daemon=True)
            p.start()
            self.orders.append(ours)
            self.processes.append(p)

    def run(self, what: str, job: kvlane.Job) -> list[int]:
        for o in self.orders:
            o.send((what, [b.hash for b in job.blocks], [b.hash for b in job.evicted]))
        failed: set[int] = set()
        for o in self.orders:
            assert o.poll(60), "a worker does not answer"
            failed |= set(o.recv())
        job.end(sorted(failed))
        return sorted(failed)

    def stop(self) -> None:
        for o in self.orders:
            o.send(None)
        for p in self.processes:
            p.join(60)
            assert p.exitcode == 0
        self.manager.close(30)


def named(*pages: int) -> list[kvlane.Block]:
    return [kvlane.Block(bytes([p]) * 16) for p in pages]


def test_manager_of_two_workers(tmp_path: Path) -> None:
    engine = Engine(tmp_path, blocks=4)
    m = engine.manager
    assert m.lookup(named(1, 2)) == bytes([ABSENT, ABSENT])
    with pytest.raises(kvlane.NotFound):
        m.load(named(1))
    job = m.store(named(1, 2, 3, 1))
    assert [b.hash[0] for b in job.blocks] == [1, 2, 3]
    assert m.lookup(named(1)) == bytes([UNDER_WAY])
    assert engine.run("store", job) == []
    job.end([0])  # no effect: the job has ended
    job = m.store(named(4, 5))
    (evicted,) = job.evicted
    assert engine.run("store", job) == []
    # Blocks evicted from memory are in files.
    states = m.lookup(named(1, 2, 3, 4, 5, 6))
    assert sorted(states) == [ABSENT, *[THERE] * 4, BELOW]
    assert (states.index(BELOW), states[5]) == (evicted.hash[0] - 1, ABSENT)
    assert engine.run("load", m.load(named(1, 2, 3, 4))) == []
    m.reset()
    engine.stop()

    again = Engine(tmp_path)  # restarts the manager and all workers
    m = again.manager
    damaged = next(tmp_path.glob("1/**/" + kvlane_key(1, tmp_path, 2)))
    flip(damaged)
    assert again.run("load", m.load(named(1, 2, 3))) == [1]
    assert m.lookup(named(1, 2, 3)) == bytes([THERE, ABSENT, THERE])
    job = m.store(named(2))
    assert again.run("store", job) == []
    assert again.run("load", m.load(named(1, 2, 3))) == []
    m.forget(named(1))
    m.touch(named(3))
    stats = m.stats()
    assert (stats["jobs"], stats["forgotten"], stats["from_files"]) == (0, 2, 3)
    again.stop()


def kvlane_key(rank: int, root: Path, page: int) -> str:
    """Returns the name of a block's file."""
    with kvlane.Store({**rank_config(rank, root), "store": {"cache_bytes": 1 << 20}}) as store:
        return store.keys(bytes([page]) * 16, hash_bytes=16)[0].hex()


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) * 3 // 4] ^= 1
    path.write_bytes(raw)


def test_manager_refuses(open_store: Callable[..., kvlane.Store]) -> None:
    with pytest.raises(kvlane.Invalid):
        kvlane.Manager([])
    with pytest.raises(kvlane.NotSupported):
        kvlane.Manager([config(store={"pipeline": "log", "log_dir": "/nowhere", "cache_bytes": 1 << 20})])
    with kvlane.Manager([config()], 1) as m:
        with pytest.raises(kvlane.Invalid):
            m.lookup([kvlane.Block(b"a"), kvlane.Block(b"bc")])
        with pytest.raises(kvlane.Invalid):
            m.lookup([kvlane.Block(b"a", 3)])
        job = m.store(named(1))
        with pytest.raises(kvlane.Busy):
            m.store(named(2))
        job.end([0])
        m.store([]).end()
    assert open_store().drop(kvlane.Keys()) == 0


def test_files_that_are_slower_than_computing_are_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path, blocks=8)
    assert engine.run("store", engine.manager.store(named(*range(1, 9)))) == []
    engine.stop()
    for always in (False, True):
        ranks = [rank_config(r, tmp_path) for r in range(RANKS)]
        for rank in ranks:
            rank["store"]["admission"] = "always" if always else "auto"
        with kvlane.Manager(ranks, 4) as m:
            for i in (1, 2, 3):
                job = m.load(named(i))
                with pytest.raises(kvlane.Invalid):
                    job.loaded(-1)
                job.loaded(0.5, 1.0)
                job.end()
                job.loaded(9, 9)  # ignored: the job has ended
                m.computed(1, 1e-3)
            for _ in range(3):
                m.computed(1 << 30, 1e-3)
            blocks = named(3, 4, 5)
            states = m.lookup(blocks)
            assert states == bytes([THERE, BELOW, BELOW])
            answers = [m.worth(blocks, states, 48) for _ in range(2)]  # the first refused one is a probe
            assert answers == [3, 3 if always else 1]
            figures = m.stats()["admission"]
            assert (figures["file_delay"], figures["step"]) == (pytest.approx(0.5, rel=1e-3), pytest.approx(1e-3, rel=1e-3))
            refused = (figures["cut"], figures["blocks_refused"], figures["probes"])
            assert refused == ((0, 0, 0) if always else (2, 4, 1))
            with pytest.raises(kvlane.Invalid):
                m.worth(blocks, states[:1], 48)
            with pytest.raises(kvlane.Invalid):
                m.computed(0, 1)
