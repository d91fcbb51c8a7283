"""Tests a worker: the device settings of its store, the order of its jobs, and the results it
reports."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("device", "own", "expected"),
    [
        ("cpu", {}, {"device": {"driver": "host"}}),
        # A store's work starts after the work on vLLM's stream, which itself waits for layers. This
        # requires the host_streams setting.
        ("cuda:1", {}, {"device": {"driver": "cuda", "index": 1}, "host_streams": True}),
        ("cuda", {"device": {"driver": "cuda", "index": 3}}, {"device": {"driver": "cuda", "index": 3}, "host_streams": True}),
    ],
)
def test_a_store_of_the_device(monkeypatch: pytest.MonkeyPatch, device: str, own: Any, expected: Any) -> None:
    import torch

    from kvlane.vllm import config, worker

    opened: list[Any] = []

    class Stop(Exception):
        pass

    def store(how: Any) -> Any:
        opened.append(how)
        raise Stop

    monkeypatch.setattr(worker, "Store", store)
    pages = SimpleNamespace(device=torch.device(device), shape=(7, 64), data_ptr=lambda: 4096, stride=lambda _: 64)
    refs = [SimpleNamespace(tensor_idx=0, page_size_bytes=64)]
    caches: Any = SimpleNamespace(tensors=[SimpleNamespace(tensor=pages)], group_data_refs=[refs])
    with pytest.raises(Stop):
        worker.open_worker({"store": {"cache_bytes": 1}, **own}, caches, [config.PageGroup(0, 1, 64, 1, 16, "")])
    assert opened == [{"store": {"cache_bytes": 1}, **expected}]


class _Store:
    """A fake Store on a GPU. It raises Busy for the kinds of task in `busy`."""

    driver = "cuda"

    def __init__(self) -> None:
        self.begun: list[tuple[str, list[int], dict[str, Any]]] = []
        self.dropped: list[bytes] = []
        self.busy: set[str] = set()

    def keys(self, hashes: bytes, _group: int, _size: int) -> Any:
        from kvlane.keys import Keys

        return Keys(hashes)

    def _begin(self, kind: str, pages: list[int], how: dict[str, Any]) -> Any:
        from kvlane import errors

        if kind in self.busy:
            raise errors.Busy("too many are under way")
        self.begun.append((kind, pages, how))
        return SimpleNamespace(done=lambda: False, wait=lambda: True, results=list)

    def load(self, _cache: Any, _keys: Any, pages: list[int], **how: Any) -> Any:
        return self._begin("load", pages, how)

    def dump(self, _cache: Any, _keys: Any, pages: list[int], after: Any, **how: Any) -> Any:
        return self._begin("dump", pages, {"after": after, **how})

    def drop(self, keys: Any) -> None:
        self.dropped.append(bytes(keys.raw))

    def close(self) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker over a fake store. Its method submit submits a job of one block whose hash is its
    page's number."""
    import numpy as np
    import torch

    from kvlane.vllm import config, jobs
    from kvlane.vllm.worker import Worker

    store: Any = _Store()
    store.stream = object()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: store.stream)
    cache: Any = None
    w = Worker(store, cache, [config.PageGroup(0, 1, 64, 1, 16, "")])

    def submit(kind: str, page: int, evicted: tuple[int, ...] = (), *, layerwise: bool = False, direct: bool = False) -> None:
        blocks = jobs.Blocks([_name(page)], [_name(e) for e in evicted], layerwise, direct=direct)
        pages: Any = SimpleNamespace(block_ids=np.array([page]))
        if kind == "load":
            w.submit_load(page, blocks, pages)
        else:
            w.submit_store(page, pages, blocks)

    return SimpleNamespace(worker=w, store=store, submit=submit)


def _name(number: int) -> bytes:
    return bytes([number]) * 32 + bytes(4)


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_load_comes_after_what_vllm_still_does(worker: Any, layerwise: bool) -> None:
    """A running step may still write to pages that vLLM has since given to the request of a load."""
    worker.submit("load", 5, layerwise=layerwise)
    how = {"after": worker.store.stream, "layerwise": layerwise, "awaited": layerwise, "promote": True}
    assert worker.store.begun == [("load", [5], how)]


def test_direct_loads_report_blocks_in_memory(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler has workers drop such blocks, since its index does not contain them."""
    monkeypatch.setattr(worker.worker, "_ended", lambda _job: True)
    monkeypatch.setattr(worker.worker, "_failure", lambda _job: None)
    monkeypatch.setattr(worker.store, "lookup", lambda keys, _timeout: bytes([1 if keys.raw[0] == 5 else 2]), raising=False)
    worker.submit("load", 5, direct=True)
    worker.submit("load", 6, direct=True)
    worker.submit("load", 7)
    assert [how["promote"] for _, _, how in worker.store.begun] == [False, False, True]
    assert len(worker.worker.get_finished()) == 3
    assert worker.worker.take_pooled() == {5: [_name(5)]}
    assert worker.worker.take_pooled() == {}


def test_loads_do_not_wait_for_stores(worker: Any) -> None:
    """Stores wait for a slow disk. Loads from memory must not wait behind them, and the blocks
    that loads bring into memory must not be dropped."""
    worker.store.busy = {"dump"}
    worker.submit("store", 1, (7,))
    worker.submit("store", 2, (8, 9))
    worker.submit("load", 9)
    assert [(kind, pages) for kind, pages, _ in worker.store.begun] == [("load", [9])]
    worker.store.busy = set()
    worker.worker.get_finished()
    assert [(kind, pages) for kind, pages, _ in worker.store.begun[1:]] == [("dump", [1]), ("dump", [2])]
    assert worker.store.dropped == [_name(7)[:32], _name(8)[:32]]


def test_what_cannot_begin_gives_its_pages_back(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that cannot start fail at once if that is requested, otherwise after a timeout."""
    worker.store.busy = {"dump", "load"}
    worker.submit("store", 1)
    worker.submit("load", 2)
    worker.submit("store", 3)
    assert not worker.worker.get_finished()
    worker.worker.wait({1})
    assert [r.job_id for r in worker.worker.get_finished()] == [1]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert [r.job_id for r in worker.worker.get_finished()] == [2, 3]
    failures = worker.worker.take_failures()
    assert {job: f.pages for job, f in failures.items()} == {1: {1}, 2: {2}, 3: {3}}
    assert worker.store.begun == []
