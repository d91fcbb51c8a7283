"""Tests the order of a prompt's blocks as passed to the Manager and to the workers' stores, which
determines eviction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Manager:
    """Records the keys it is given."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.looked: list[Any] = []

    def lookup(self, blocks: list[Any]) -> bytes:
        self.looked = [b.hash[0] for b in blocks]
        return bytes(len(blocks))

    def store(self, blocks: list[Any], before: Any = None) -> Any:
        self.stored.append(([b.hash[0] for b in blocks], before and before.hash[0]))
        return SimpleNamespace(blocks=blocks, evicted=[], anchors=None, end=lambda *_: None)


def test_blocks_are_in_the_order_of_the_prompt() -> None:
    from vllm.v1.kv_offload.base import ReqContext

    from kvlane.vllm.scheduler import Scheduler

    scheduler, manager = Scheduler((0, 1), events=False, log_seconds=60), Manager()
    scheduler.open(manager)  # type: ignore[arg-type]
    keys: list[Any] = [bytes([10 * group + i]) * 32 + group.to_bytes(4, "big") for group in range(2) for i in range(4)]
    context = ReqContext("r")
    for i, key in enumerate(keys):  # vLLM lists keys group by group
        context.set_offload_key_position(key, 16 * (i % 4 + 1))
    scheduler.lookup(keys[0], context)
    assert manager.looked == [0, 10, 1, 11, 2, 12, 3, 13]

    out = scheduler.prepare_store([keys[5], keys[1], keys[4], keys[0]], context)
    assert out is not None
    assert out.store_spec.before is None
    out = scheduler.prepare_store([keys[2], keys[3]], context)
    assert out is not None
    assert out.store_spec.before == keys[1]
    assert out.store_spec.names == keys[2:4]
    assert manager.stored == [([0, 10, 1, 11], None), ([2, 3], 1)]
