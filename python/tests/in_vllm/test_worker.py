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
