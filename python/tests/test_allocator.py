"""Calls the allocator of kvlane.torch_allocator through its C functions as PyTorch does, on a
simulated device."""

from __future__ import annotations

import ctypes as c
import importlib.util
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import required

import kvlane


class Plugged:
    """Stands for torch's CUDAPluggableAllocator: loads the library and looks up its two functions."""

    def __init__(self, path: str, alloc: str, free: str) -> None:
        lib = c.CDLL(path)
        self.alloc, self.free = getattr(lib, alloc), getattr(lib, free)
        self.alloc.argtypes, self.alloc.restype = (c.c_ssize_t, c.c_int, c.c_void_p), c.c_void_p
        self.free.argtypes, self.free.restype = (c.c_void_p, c.c_ssize_t, c.c_int, c.c_void_p), None


def test_memory_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = types.ModuleType("torch.cuda.memory")
    memory.CUDAPluggableAllocator = Plugged
    for name, module in (("torch", types.ModuleType("torch")), ("torch.cuda", types.ModuleType("torch.cuda"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "torch.cuda.memory", memory)
    a = kvlane.torch_allocator(driver="sim")
    before = kvlane.allocator_stats()
    places = [a.alloc(n, 0, None) for n in (1, 4096, 1 << 20)]
    assert all(places)
    assert len(set(places)) == len(places)
    now = kvlane.allocator_stats()
    assert now["Allocations"] - before["Allocations"] == len(places)
    assert now["Bytes"] - before["Bytes"] == 1 + 4096 + (1 << 20)
    assert now["Handle"] == "memfd"
    assert a.alloc(0, 0, None) is None
    assert a.alloc(1 << 62, 0, None) is None
    a.free(places[0], 1, 0, 12345)  # 12345 is not a stream
    assert kvlane.allocator_stats()["Kept"] == before["Kept"] + 1
    for p in places:
        a.free(p, 0, 0, None)
    a.free(None, 0, 0, None)
    assert kvlane.allocator_stats()["Allocations"] == before["Allocations"]


def test_what_is_refused() -> None:
    with pytest.raises(kvlane.Error, match="tape"):
        kvlane.torch_allocator(7, driver="tape")
    with pytest.raises(kvlane.Error):
        kvlane.torch_allocator(7, driver="sim")  # there is only one simulated device
    with pytest.raises(kvlane.NotFound):
        kvlane.allocator_stats(7)


def test_tensors_that_another_process_imports() -> None:
    """Runs imported.py, which uses the allocator from PyTorch on a GPU, in a new process."""
    reason = "needs torch"
    if importlib.util.find_spec("torch"):
        ran = subprocess.run(
            [sys.executable, Path(__file__).with_name("imported.py")], check=False, capture_output=True, text=True, timeout=600
        )
        if ran.returncode != 77:
            assert ran.returncode == 0, ran.stdout + ran.stderr
            return
        reason = ran.stdout
    if required("cuda"):
        pytest.fail(reason)
    pytest.skip(reason)
