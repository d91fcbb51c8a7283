"""Memory of a GPU that other processes can import, for tensors of PyTorch."""

from __future__ import annotations

from typing import Any

from . import _lib


def torch_allocator(device: int = 0, *, driver: str = "cuda") -> Any:
    """An allocator for PyTorch (torch.cuda.memory.CUDAPluggableAllocator) whose memory other processes can import.

    What it makes has handles of the best type that works for the GPU of that index: fabric, a file descriptor, or CUDA IPC.
    NotSupported says why none does. Use it for a pool of tensors, so that PyTorch keeps what it has freed for the next one and
    knows of all its streams:

        pool = torch.cuda.MemPool(kvlane.torch_allocator().allocator())
        with torch.cuda.use_mem_pool(pool):
            kv = torch.empty(shape, device="cuda")

    Memory is freed when the stream that PyTorch names is done. driver "sim" is for tests: nobody can touch its memory.
    """
    lib = _lib.library()
    lib.call("open_allocator", driver.encode(), device)
    from torch.cuda.memory import CUDAPluggableAllocator

    return CUDAPluggableAllocator(lib.path, "kvl_torch_alloc", "kvl_torch_free")


def allocator_stats(device: int = 0) -> dict[str, Any]:
    """The type of handle, how many allocations and bytes there are, and how often memory stayed that was to be freed."""
    return dict(_lib.library().json("allocator_stats", device))
