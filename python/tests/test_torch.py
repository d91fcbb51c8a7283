"""Tests PagedCache over torch tensors, and the guide's first example."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import HEADS, LAYERS, SIZE, TOKENS

import kvlane

torch = pytest.importorskip("torch")  # conftest.py fails if KVLANE_REQUIRE names torch
pytestmark = pytest.mark.torch

PAGES = 8
Open = Callable[..., kvlane.Store]


def tensors(dtype: Any) -> list[Any]:
    """Returns a tensor [2, pages, tokens, heads, size] for each layer, each a view into one larger
    allocation."""
    whole = torch.randn(LAYERS, 2, PAGES + 1, TOKENS, HEADS, SIZE).to(dtype)
    return [t[:, 1:] for t in whole]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_dump_and_load(open_store: Open, name: str) -> None:
    dtype = getattr(torch, name)
    store = open_store(model={"dtype": name.replace("float8", "fp8").replace("e4m3fn", "e4m3")})
    kv = tensors(dtype)
    before = [t.clone() for t in kv]
    keys = store.token_keys(torch.arange(4 * TOKENS), TOKENS)
    with kvlane.PagedCache(store, kv, "kp") as cache:
        store.dump(cache, keys, torch.arange(4)).result(30)
        store.load(cache, keys, torch.tensor([7, 6, 5, 4])).result(30)
    for t, was in zip(kv, before, strict=True):
        assert torch.equal(t[:, :4].view(torch.uint8), was[:, :4].view(torch.uint8))
        assert torch.equal(t[:, 4:].flip(1).view(torch.uint8), was[:, :4].view(torch.uint8))


def test_freed_and_moved_tensors_are_refused(open_store: Open) -> None:
    store = open_store()
    keys = store.token_keys(range(TOKENS), TOKENS)
    kv = torch.zeros(LAYERS, 2, PAGES, TOKENS, HEADS, SIZE)
    keep = kv.untyped_storage().clone()
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        store.dump(cache, keys, [0]).result(30)
        kv.set_(keep, 0, kv.shape, kv.stride())
        with pytest.raises(kvlane.Invalid, match="freed or moved"):
            store.load(cache, keys, [1])
        with pytest.raises(kvlane.Invalid, match="freed or moved"):
            store.dump(cache, keys, [1])


def test_tensors_elsewhere_are_refused(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(kvlane.Invalid, match="on meta and the store on cpu"):
        kvlane.PagedCache(store, torch.zeros(LAYERS, 2, PAGES, TOKENS, HEADS, SIZE, device="meta"), "lkp")


def test_the_guide(tmp_path: pathlib.Path) -> None:
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "python.md").read_text()
    code = re.findall(r"```python\n(.*?)```", guide, re.S)[0]
    exec(code.replace("/tmp/kvlane-blocks", str(tmp_path)), {})
