"""Tests copies between regions of a store, over numpy arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvlane

Open = Callable[..., kvlane.Store]


def test_pieces_arrive_where_they_belong(open_store: Open) -> None:
    store = open_store()
    source = np.random.default_rng(3).integers(0, 256, 1 << 20, dtype=np.uint8)
    target: Any = np.zeros(1 << 20, dtype=np.uint8)
    with kvlane.Region(store, source) as a, kvlane.Region(store, target) as b, kvlane.Stream(store) as stream:
        stream.copy(b, a).result(30)
        np.testing.assert_array_equal(target, source)
        target[:] = 0
        pages = np.random.default_rng(4).permutation(256)
        task = stream.copy(b, a, pages * 4096, range(0, 1 << 20, 4096), 4096, timeout=600)
        assert task.wait(30)
        np.testing.assert_array_equal(target.reshape(256, 4096)[pages], source.reshape(256, 4096))

        async def within() -> None:
            await stream.copy(b, b, 0, 4096, 100)

        asyncio.run(within())
        np.testing.assert_array_equal(target[:100], target[4096:4196])
        stream.copy(b, a, [], [], []).result(30)


def test_what_is_refused(open_store: Open) -> None:
    store = open_store()
    array: Any = np.zeros((64, 64), dtype=np.uint8)
    with pytest.raises(kvlane.Invalid, match="contiguous"):
        kvlane.Region(store, array[:, :8])
    region, stream = kvlane.Region(store, array), kvlane.Stream(store)
    with pytest.raises(kvlane.Invalid):
        stream.copy(region, region, 4000, 0, 200)  # beyond the region's end
    with pytest.raises(kvlane.Invalid, match="differ in number"):
        stream.copy(region, region, [0, 1], [0, 1, 2], 1)
    with pytest.raises(kvlane.Invalid):
        stream.copy(region, region, -1, 0, 1)
    with pytest.raises(kvlane.Invalid, match="HostStreams"):
        stream.copy(region, region, 0, 100, 1, after=0)
    other = kvlane.Region(open_store(), np.zeros(10, dtype=np.uint8))
    with pytest.raises(kvlane.Invalid, match="different engines"):
        stream.copy(region, other)
    region.close(30)
    region.close(30)
    with pytest.raises(kvlane.Closed, match="closed"):
        stream.copy(region, region)
    stream.close(30)
    stream.close(30)


def test_a_store_closes_its_streams_and_regions(open_store: Open) -> None:
    store = open_store()
    array: Any = np.arange(100_000, dtype=np.int64)
    target: Any = np.zeros_like(array)
    a, b, stream = kvlane.Region(store, array), kvlane.Region(store, target), kvlane.Stream(store)
    task = stream.copy(b, a)
    task.result(30)
    np.testing.assert_array_equal(target, array)
    store.close(30)
    stream.close()
    a.close()
    b.close()
    again = open_store()
    with kvlane.Region(again, array):
        pass
