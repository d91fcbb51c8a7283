"""What a worker's store is told of the device that vLLM computes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("device", "own", "expected"),
    [
        ("cpu", {}, {"device": {"driver": "host"}}),
        # A store begins behind what is on vLLM's stream, and that waits for layers: the engine has to be opened for it.
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


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_load_comes_after_what_vllm_still_does(monkeypatch: pytest.MonkeyPatch, layerwise: bool) -> None:
    """A step that is under way may write to pages that vLLM has given to the request of a load since."""
    import numpy as np
    import torch

    from kvlane.keys import Keys
    from kvlane.vllm import config, jobs, worker

    begun: list[dict[str, Any]] = []

    class Store:
        driver = "cuda"

        def keys(self, hashes: bytes, _group: int, _size: int) -> Keys:
            return Keys(hashes)

        def load(self, _cache: Any, _keys: Any, pages: list[int], **how: Any) -> Any:
            begun.append({"pages": pages, **how})
            return SimpleNamespace(done=lambda: False)

    stream = object()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    store: Any = Store()
    cache: Any = None
    w = worker.Worker(store, cache, [config.PageGroup(0, 1, 64, 1, 16, "")])
    blocks = jobs.Blocks([bytes(36)], [], layerwise)
    pages: Any = SimpleNamespace(block_ids=np.array([5]))
    w.submit_load(1, blocks, pages)
    assert begun == [{"pages": [5], "after": stream, "layerwise": layerwise, "awaited": layerwise}]
