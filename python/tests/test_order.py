"""Tests that the end of a prompt is evicted before its beginning. Two prompts are used in turns
with room for less than both, and each must still find a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HEADS, LAYERS, SIZE, TOKENS, config

import kvlane
from kvlane.manager import THERE, Block

PROMPT, SLOTS, PIECE, ROUNDS = 32, 40, 8, 4  # blocks of a prompt, blocks that fit, blocks of a call, rounds
IMAGE = 4096 * (1 + LAYERS)


def enough(found: list[int]) -> bool:
    """Returns whether each prompt finds, from its second turn on, a quarter of the blocks that fit
    beside the other prompt."""
    return min(found[2:]) >= (SLOTS - PROMPT) // 4


@pytest.mark.parametrize("where", ["memory", "files", "log"])
def test_two_alternating_prompts(tmp_path: Path, where: str) -> None:
    bounds: dict[str, dict[str, Any]] = {
        "memory": {"cache_bytes": SLOTS * IMAGE},
        "files": {"cache_bytes": PIECE * IMAGE, "dirs": tmp_path, "file_bytes": SLOTS * IMAGE},
        "log": {"cache_bytes": PIECE * IMAGE, "log_dir": tmp_path, "log_bytes": (SLOTS + 16) * IMAGE},  # 16: gaps in the log
    }
    kv: Any = np.zeros((LAYERS, 2, PIECE, TOKENS, HEADS, SIZE), np.float32)
    found: list[int] = []
    with kvlane.Store(config(store=bounds[where])) as store, kvlane.PagedCache(store, kv, "lkp") as cache:
        for number in range(ROUNDS):
            keys = store.token_keys([number % 2, *range(1, PROMPT * TOKENS)], TOKENS)
            with store.lease(keys) as lease:
                found.append(lease.found)
            for at in range(0, PROMPT, PIECE):
                do = store.load if at + PIECE <= found[-1] else store.dump
                assert do(cache, keys[at : at + PIECE], range(PIECE)).wait(30)
    assert enough(found), found


def test_two_alternating_prompts_of_a_manager() -> None:
    found: list[int] = []
    with kvlane.Manager([config()], SLOTS) as manager:
        for number in range(ROUNDS):
            blocks = [Block(bytes([number % 2, i]) * 16) for i in range(PROMPT)]
            states = manager.lookup(blocks)
            found.append(next((i for i, s in enumerate(states) if s != THERE), PROMPT))
            if found[-1]:
                manager.load(blocks[: found[-1]]).end()
                manager.touch(blocks[: found[-1]])
            for at in range(found[-1], PROMPT, PIECE):
                manager.store(blocks[at : at + PIECE]).end()
    assert enough(found), found


def test_before_may_be_keys_of_one_block() -> None:
    kv: Any = np.zeros((LAYERS, 2, PIECE, TOKENS, HEADS, SIZE), np.float32)
    with kvlane.Store(config()) as store, kvlane.PagedCache(store, kv, "lkp") as cache:
        keys = store.token_keys(range(4 * TOKENS), TOKENS)
        assert store.dump(cache, keys[1:2], range(1), before=keys[:1]).wait(30)
        assert store.load(cache, keys[1:2], range(1), before=keys[:1]).wait(30)
        for several in keys[:2], keys[:0]:
            with pytest.raises(kvlane.Invalid, match=f"before has {len(several)} keys: give one"):
                store.dump(cache, keys[2:3], range(1), before=several)
