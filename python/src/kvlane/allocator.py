"""GPU memory for PyTorch tensors that other processes can import."""

from __future__ import annotations

from typing import Any

from . import _lib


def torch_allocator(device: int = 0, *, driver: str = "cuda") -> Any:
    """Return an allocator for PyTorch whose memory other processes can import.

    The result is a torch.cuda.memory.CUDAPluggableAllocator. Its memory has handles of the best type
    that works for the GPU `device`: fabric, file descriptor or CUDA IPC. If none works, NotSupported
    gives the reason. Use it for a pool of tensors, so that PyTorch reuses freed memory and tracks all
    streams of it:

        pool = torch.cuda.MemPool(kvlane.torch_allocator().allocator())
        with torch.cuda.use_mem_pool(pool):
            kv = torch.empty(shape, device="cuda")

    Memory is freed once the stream that PyTorch names is done. driver "sim" is for tests: its memory
    cannot be accessed.
    """
    lib = _lib.library()
    lib.call("open_allocator", driver.encode(), device)
    from torch.cuda.memory import CUDAPluggableAllocator

    return CUDAPluggableAllocator(lib.path, "kvl_torch_alloc", "kvl_torch_free")


def allocator_stats(device: int = 0) -> dict[str, Any]:
    """Return the handle type, the number and bytes of allocations, and the count of failed frees."""
    return dict(_lib.library().json("allocator_stats", device))
