"""Checks GPU tensors of PyTorch that live in memory of kvlane's allocator: they are computed with,
imported and changed by a second process, and freed. Usage: imported.py. Needs torch only. Exits
with code 77 if torch finds no GPU."""

from __future__ import annotations

import array
import ctypes as c
import gc
import json
import os
import socket
import subprocess
import sys
from typing import Any

import torch

import kvlane

NO_GPU = 77
COUNT = 8 << 20  # number of 64-bit integers
PATIENCE = 600  # timeout of an answer, in seconds
# Handle types and their CUDA numbers (CUmemAllocationHandleType).
TYPES = {"posix-fd": 1, "fabric": 8}
HANDLE_BYTES = 64


class IPCHandle(c.Structure):
    """CUipcMemHandle, which CUDA takes by value."""

    _fields_ = (("reserved", c.c_char * HANDLE_BYTES),)


class Access(c.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", c.c_int), ("location_id", c.c_int), ("flags", c.c_int))


class Driver:
    """Calls functions of the CUDA driver library."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libcuda.so.1")

    def __call__(self, name: str, *args: Any) -> None:
        if code := getattr(self.lib, name)(*args):
            raise RuntimeError(f"{name} answered {code}")


class Memory:
    """Describes 64-bit integers at a device address, in the form that torch.as_tensor accepts."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (COUNT,), "typestr": "<i8", "data": (address, False), "version": 2}


def say(*what: Any) -> None:
    print(*what, flush=True)


def export(driver: Driver, tensor: Any, kind: str) -> tuple[dict[str, Any], list[int]]:
    """Exports a tensor's memory for another process. Returns a JSON-encodable description and the
    file descriptors to send with it, which the caller closes."""
    base, size, handle = c.c_uint64(), c.c_size_t(), c.c_uint64()
    driver("cuMemGetAddressRange_v2", c.byref(base), c.byref(size), c.c_uint64(tensor.data_ptr()))
    words = {"kind": kind, "bytes": size.value, "offset": tensor.data_ptr() - base.value}
    if kind == "cuda-ipc":
        ipc = IPCHandle()
        driver("cuIpcGetMemHandle", c.byref(ipc), base)
        return {**words, "handle": bytes(ipc).hex()}, []
    driver("cuMemRetainAllocationHandle", c.byref(handle), c.c_void_p(base.value))
    try:
        fd, fabric = c.c_int(-1), (c.c_ubyte * HANDLE_BYTES)()
        target = c.byref(fd) if kind == "posix-fd" else c.byref(fabric)
        driver("cuMemExportToShareableHandle", target, handle, c.c_int(TYPES[kind]), c.c_uint64(0))
    finally:
        driver("cuMemRelease", handle)
    return {**words, "handle": bytes(fabric).hex()}, [fd.value] if kind == "posix-fd" else []


def import_memory(driver: Driver, words: dict[str, Any], fds: list[int]) -> int:
    """Maps memory that export described, until the process ends. Returns its address."""
    at, handle, size = c.c_uint64(), c.c_uint64(), c.c_size_t(words["bytes"])
    raw = bytes.fromhex(words["handle"])
    if words["kind"] == "cuda-ipc":
        driver("cuIpcOpenMemHandle_v2", c.byref(at), IPCHandle.from_buffer_copy(raw), c.c_uint(1))
        return at.value
    fabric = (c.c_ubyte * HANDLE_BYTES).from_buffer_copy(raw)
    source = c.c_void_p(fds[0]) if fds else c.byref(fabric)
    driver("cuMemImportFromShareableHandle", c.byref(handle), source, c.c_int(TYPES[words["kind"]]))
    driver("cuMemAddressReserve", c.byref(at), size, c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
    driver("cuMemMap", at, size, c.c_size_t(0), handle, c.c_uint64(0))
    access = Access(1, torch.cuda.current_device(), 3)  # location: the device; access: read and write
    driver("cuMemSetAccess", at, size, c.byref(access), c.c_size_t(1))
    return at.value


def importer(fd: int) -> int:
    """The second process: checks the tensor, negates it, and reports the outcome."""
    with socket.socket(fileno=fd) as s:
        s.settimeout(PATIENCE)
        message, fds, _, _ = socket.recv_fds(s, 1 << 16, 1)
        torch.zeros(1, device="cuda")  # makes the device's context current in this thread
        words = json.loads(message)
        tensor = torch.as_tensor(Memory(import_memory(Driver(), words, fds) + words["offset"]), device="cuda")
        want = 3 * torch.arange(COUNT, device="cuda") + 1
        wrong = int((tensor != want).sum())
        tensor.neg_()
        torch.cuda.synchronize()
        s.sendall(json.dumps({"wrong": wrong}).encode())
    return 0


def hand_over(tensor: Any, kind: str) -> None:
    """Has a second process import the tensor, and checks the negated values afterwards."""
    words, fds = export(Driver(), tensor, kind)
    say("exported by", kind, "of", words["bytes"], "bytes, at", words["offset"])
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(PATIENCE)
        other = subprocess.Popen([sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()])
        there.close()
        try:
            socket.send_fds(here, [json.dumps(words).encode()], array.array("i", fds))
            answer = here.recv(1 << 16)
        finally:
            for fd in fds:
                os.close(fd)
            try:
                code = other.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                other.kill()
                raise
    assert answer, f"the second process ended with {code}"
    assert json.loads(answer) == {"wrong": 0}
    assert code == 0
    assert torch.equal(tensor, -(3 * torch.arange(COUNT, device="cuda") + 1)), "what the second process wrote is not here"
    say("a second process has read and changed", tensor.numel() * tensor.element_size(), "bytes")


def compute(pool: Any) -> None:
    """Allocates tensors in a pool of the allocator, computes with them, and exports them."""
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        numbers = 3 * torch.arange(COUNT, device="cuda") + 1
        matrix = torch.randn(2048, 2048, device="cuda")
        with torch.cuda.stream(side):
            sides = torch.full((COUNT,), 7, device="cuda")
    product = matrix @ matrix  # cuBLAS allocates its workspace here, outside the pool
    with torch.cuda.use_mem_pool(pool):
        assert torch.equal(matrix @ matrix, product), "a product is another one in the pool"
    torch.cuda.synchronize()
    assert int(sides.sum()) == 7 * COUNT
    now = kvlane.allocator_stats()
    say("allocated:", now)
    assert now["Bytes"] >= (numbers.numel() + sides.numel()) * 8 + matrix.numel() * 4, "PyTorch has allocated elsewhere"
    hand_over(numbers, now["Handle"])


def main() -> int:
    if not torch.cuda.is_available():
        say("torch", torch.__version__, "has no GPU")
        return NO_GPU
    say("torch", torch.__version__, "on", torch.cuda.get_device_name())
    allocator = kvlane.torch_allocator()
    for round_ in range(2):
        pool = torch.cuda.MemPool(allocator.allocator())
        compute(pool)
        del pool
        gc.collect()
        torch.cuda.empty_cache()
        left = kvlane.allocator_stats()
        say("round", round_, "freed:", left)
        assert (left["Allocations"], left["Bytes"], left["Kept"]) == (0, 0, 0), "what was freed is still allocated"
    return 0


if __name__ == "__main__":
    sys.exit(importer(int(sys.argv[1])) if len(sys.argv) > 1 else main())
