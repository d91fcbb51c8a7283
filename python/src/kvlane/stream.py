"""Copies of other data than blocks, between device and host memory, over the paths of the store."""

from __future__ import annotations

import array
import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _lib, errors
from .paged import Memory
from .task import Task, after_of

if TYPE_CHECKING:
    from types import TracebackType

    from .store import Store


class Region(_lib.Registered):
    """Memory of a tensor or array that a store's streams copy from and to.

    It is on the store's device or on the host. Host memory must not be pinned yet; it is pinned
    until close. The tensor must be contiguous, and the region keeps a reference to it. Use the
    region in a with statement, or close it before the store. Otherwise the store's close closes it.
    """

    def __init__(self, store: Store, tensor: Any) -> None:
        memory = Memory.of(tensor)
        self.bytes, stride = memory.itemsize, memory.itemsize
        for size, own in zip(reversed(memory.shape), reversed(memory.strides), strict=True):
            if size != 1 and own != stride:
                raise errors.Invalid("register memory: the tensor is not contiguous")
            stride *= size
            self.bytes *= size
        device = f"cuda:{store.device_index}"
        on_device = store.driver == "cuda" and memory.device in (device, device.removesuffix(":0"))
        if not on_device and memory.device != "cpu":
            raise errors.Invalid(f"register memory: the tensor is on {memory.device}, the store on {device}")
        self.store, self._memory, self._closed = store, memory, False
        kind = _lib.DEVICE if on_device else _lib.HOST
        self.handle = store._register("register_memory", self, store._regions, memory.address, self.bytes, kind)

    def check(self) -> None:
        """Raise Invalid if the tensor's memory was freed or moved since it was registered."""
        if self._closed:
            raise errors.Closed("the region is closed")
        if self._memory.moved():
            raise errors.Invalid("the memory of the region's tensor was freed or moved")

    def close(self, timeout: float | None = None) -> None:
        """Wait for copies in progress and unregister the memory.

        After Timeout the tensor must stay, and close may be called again.
        """
        if self.handle in self.store._regions:
            self.store._finish("unregister_memory", self.handle, timeout)
            self.store._regions.pop(self.handle, None)
        self._closed = True

    def __enter__(self) -> Region:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Stream(_lib.Owned):
    """Copies between regions, over the same paths as the store's loads. Safe from any thread.

    Copies start in the order of submission. Use the stream in a with statement, or close it before
    the store. Otherwise the store's close closes it.
    """

    def __init__(self, store: Store) -> None:
        handle = c.c_uint64()
        _lib.library().call("open_stream", store._handle, c.byref(handle))
        self.store, self._handle, self._closed = store, handle.value, False

    def copy(
        self,
        to: Region,
        source: Region,
        to_at: int | Sequence[int] = 0,
        source_at: int | Sequence[int] = 0,
        bytes: int | Sequence[int] | None = None,
        *,
        after: Any = None,
        timeout: float | None = None,
    ) -> Task:
        """Start copying pieces: bytes[i] bytes from source_at[i] in source to to_at[i] in `to`.

        Both regions may be the same. A single number applies to all pieces. By default the whole
        source is one piece. Destination pieces must not overlap any other piece. Wait for the task,
        or await it, before accessing the pieces.

        after: a CUDA stream; the copies wait for its current work (needs the store's
        "host_streams"). timeout: seconds to wait for a place in the stream. Raises Busy if it stays
        full.
        """
        to.check()
        source.check()
        given = [to_at, source_at, source.bytes if bytes is None else bytes]
        counts = {len(x) for x in given if not isinstance(x, int)}
        if len(counts) > 1:
            raise errors.Invalid(f"copy: {sorted(counts)} offsets or lengths differ in number")
        n = counts.pop() if counts else 1
        arrays = [_numbers(x, n) for x in given]
        ats = [_lib.address(a, "places")[0] for a in arrays]
        task = c.c_uint64()
        _lib.library().call(
            "copy", self._handle, to.handle, ats[0], source.handle, ats[1], ats[2], n, after_of(after),
            _lib.milliseconds(timeout), c.byref(task),
        )  # fmt: skip
        return Task(task.value, 0, (to, source))

    def close(self, timeout: float | None = None) -> None:
        """Cancel copies that have not started and wait for the rest.

        After Timeout it may be called again.
        """
        if not self._closed and not self.store.closed:
            self.store._finish("close_stream", self._handle, timeout)
        self._closed = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _numbers(x: Any, n: int) -> array.array[int]:
    try:
        return array.array("Q", [x]) * n if isinstance(x, int) else array.array("Q", x.tolist() if hasattr(x, "tolist") else x)
    except (OverflowError, TypeError) as e:
        raise errors.Invalid(f"copy: {e}") from e
