"""Loads, dumps and prefetches under way."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Generator
from typing import Any, NamedTuple

from . import _lib, errors
from .errors import Status

# How long the library waits before Python looks for signals, in seconds.
_SLICE = 0.1


class Result(NamedTuple):
    """What became of a block. undefined: a load may have written to its page, which is not the block: nobody may read it."""

    status: Status
    undefined: bool


class Task:
    """Something under way in the library. It goes on without this object; await it, or wait. Safe from any thread."""

    def __init__(self, handle: int, n: int, keep: Any = None) -> None:
        self._handle, self._n = handle, n
        self._keep = keep  # what the library reads or writes until the task has ended

    def __len__(self) -> int:
        return self._n

    def _status(self, what: int, timeout: float | None, abandoned: threading.Event | None = None) -> int:
        call, deadline = _lib.library().status, None if timeout is None else time.monotonic() + timeout
        if (status := call("wait", self._handle, what, 0)) != Status.PENDING:
            return status
        while not (abandoned and abandoned.is_set()):
            left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
            if left <= 0:
                break
            if (status := call("wait", self._handle, what, _lib.milliseconds(left) or 1)) != Status.PENDING:
                return status
        return status

    def _wait(self, what: int, timeout: float | None, abandoned: threading.Event | None = None) -> None:
        if status := self._status(what, timeout, abandoned):
            raise errors.Timeout("wait for a task: the time passed") if status == Status.PENDING else _lib.library().error(status)

    def done(self) -> bool:
        """Whether it has ended, well or not. A dump has ended when it is durable."""
        return self._status(_lib.DONE, 0) != Status.PENDING

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, well or not. False: the time passed. In seconds; None waits for ever."""
        return self._status(_lib.DONE, timeout) != Status.PENDING

    def result(self, timeout: float | None = None) -> None:
        """Waits until it has ended, and raises the first block's error if any failed; Timeout where the time passed."""
        self._wait(_lib.DONE, timeout)

    def results(self) -> list[Result]:
        """What became of each block. Timeout before the task has ended."""
        out = (_lib.BlockResult * self._n)()
        if status := _lib.library().status("results", self._handle, out, self._n):
            raise _lib.library().error(status)
        return [Result(Status(r.status), bool(r.undefined)) for r in out]

    def cancel(self) -> None:
        """Asks it to do no more. It ends when the hardware has stopped."""
        _lib.library().call("cancel", self._handle)

    def __await__(self) -> Generator[Any, None, None]:
        return self._awaited(_lib.DONE).__await__()

    async def _awaited(self, what: int) -> None:
        if self._status(what, 0) == Status.PENDING:
            abandoned = threading.Event()
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._wait, what, None, abandoned)
            finally:
                abandoned.set()  # a wait that was cancelled leaves its thread
        else:
            self._wait(what, 0)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", 0), 0
        if handle:
            _lib.library().status("free", handle)


class Load(Task):
    """A load or a prefetch."""

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until layers 0 to layer are on every page that gets them; for loads that are layerwise."""
        self._wait(layer, timeout)

    async def layer(self, layer: int) -> None:
        """wait_layer for asyncio."""
        await self._awaited(layer)


class Dump(Task):
    """A dump. It has ended when it is durable."""

    def source_free(self, timeout: float | None = None) -> None:
        """Waits until its pages may be changed."""
        self._wait(_lib.SOURCE_FREE, timeout)

    def published(self, timeout: float | None = None) -> None:
        """Waits until lookups find its blocks."""
        self._wait(_lib.PUBLISHED, timeout)

    def submit_layer(self, layer: int, after: Any = None) -> None:
        """Says that a layer of a layerwise dump may be read, once what is on the stream `after` by now is done."""
        _lib.library().call("submit_layer", self._handle, layer, after_of(after))


def stream_of(stream: Any) -> int:
    """The handle of a CUDA stream: a number, or a torch.cuda.Stream."""
    return int(getattr(stream, "cuda_stream", stream))


def after_of(stream: Any) -> Any:
    """A kvl_after, or NULL for None."""
    return None if stream is None else ctypes.byref(_lib.After(stream_of(stream)))
