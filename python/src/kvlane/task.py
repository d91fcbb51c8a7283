"""Loads, dumps and prefetches under way."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import queue
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, NamedTuple

from . import _lib, errors
from .errors import Status

# Between two looks at what is awaited: a sixteenth of what the latest wait has taken, but no more than the pause. A young wait
# is made in the library. In seconds.
_PAUSE, _YOUNG = 10e-3, 16e-3


class Result(NamedTuple):
    """What became of a block. undefined: a load may have written to its page, which is not the block: nobody may read it."""

    status: Status
    undefined: bool


class Task(_lib.Owned):
    """Something under way in the library. It goes on without this object; await it, or wait. Safe from any thread."""

    def __init__(self, handle: int, n: int, keep: Any = None) -> None:
        self._handle, self._n = handle, n
        self._keep = keep  # what the library reads or writes until the task has ended

    def __len__(self) -> int:
        return self._n

    def _status(self, what: int, timeout: float | None) -> int:
        endless = _lib.milliseconds(timeout) < 0  # also checks it
        call, deadline = _lib.library().status, None if endless or timeout is None else time.monotonic() + timeout
        if (status := call("wait", self._handle, what, 0)) != Status.PENDING:
            return status
        while True:
            left = _lib.SLICE if deadline is None else min(_lib.SLICE, deadline - time.monotonic())
            if left <= 0:
                return status
            if (status := call("wait", self._handle, what, _lib.milliseconds(left) or 1)) != Status.PENDING:
                return status

    def _wait(self, what: int, timeout: float | None) -> None:
        if status := self._status(what, timeout):
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
            _watch()
            future = asyncio.get_running_loop().create_future()
            _awaited.put(_Wait(self, what, future, time.monotonic()))
            await future
        self._wait(what, 0)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", 0), 0
        if handle:
            _lib.library().status("free", handle)


class _Wait(NamedTuple):
    task: Task
    what: int
    future: asyncio.Future[None]
    begin: float


_awaited: queue.SimpleQueue[_Wait] = queue.SimpleQueue()


@functools.cache
def _watch() -> None:
    """Starts the thread that looks at all that is awaited. A thread for each wait would be one of few, which might all wait for
    what is done after another wait.
    """
    threading.Thread(target=_look, name="kvlane", daemon=True).start()


def _look() -> None:
    waits: list[_Wait] = []
    pause = 0.0
    while True:
        with suppress(queue.Empty):
            while True:
                waits.append(_awaited.get(timeout=pause if waits else None))
                pause = 0
        begin = time.monotonic()
        waits = [w for w in waits if not _came(w)]
        age = begin - waits[-1].begin if waits else 0
        if waits and age < _YOUNG:
            # In the library, which tells of the end at once, and has small loads carried on by whoever waits.
            waits[-1].task._status(waits[-1].what, 1e-3)
        else:
            pause = max(min(age / 16, _PAUSE), 4 * (time.monotonic() - begin))


def _came(wait: _Wait) -> bool:
    """Whether a task has come as far as it is awaited, or nobody does that any more; who does is told."""
    if not wait.future.cancelled() and wait.task._status(wait.what, 0) == Status.PENDING:
        return False
    with suppress(RuntimeError):  # the loop is closed
        wait.future.get_loop().call_soon_threadsafe(_tell, wait.future)
    return True


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Load(Task):
    """A load or a prefetch."""

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until layers 0 to layer are on every page that gets them; for loads that are layerwise."""
        self._wait(_lib.number(layer, "layer", most=2**31 - 1), timeout)

    async def layer(self, layer: int) -> None:
        """wait_layer for asyncio."""
        await self._awaited(_lib.number(layer, "layer", most=2**31 - 1))


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
        _lib.library().call("submit_layer", self._handle, _lib.number(layer, "layer", most=2**32 - 1), after_of(after))


def stream_of(stream: Any) -> int:
    """The handle of a CUDA stream: a number, or a torch.cuda.Stream."""
    return int(getattr(stream, "cuda_stream", stream))


def after_of(stream: Any) -> Any:
    """A kvl_after, or NULL for None."""
    return None if stream is None else ctypes.byref(_lib.After(stream_of(stream)))
