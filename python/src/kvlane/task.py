"""Loads, dumps and prefetches in progress."""

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
from ._traces import Span
from .errors import Status

# Seconds. A wait younger than _YOUNG runs in the library. After that, the pause between two polls
# is a sixteenth of the age of the latest wait, at most _PAUSE.
_PAUSE, _YOUNG = 10e-3, 16e-3


class Result(NamedTuple):
    """Outcome of one block.

    undefined: a failed load may have written to the block's page. Do not read the page.
    """

    status: Status
    undefined: bool


class LeftOut(NamedTuple):
    """A tier that did not store all blocks of a dump.

    blocks is the number of blocks that are missing there, and cause the error of the first.
    """

    tier: str
    blocks: int
    cause: str


class Task(_lib.Owned):
    """A task of the library. Await it, or wait for it. Safe from any thread.

    The task continues if this object is deleted.
    """

    def __init__(self, handle: int, n: int, keep: Any = None, span: Span | None = None) -> None:
        self._handle, self._n, self._span = handle, n, span
        self._keep = keep  # memory that the library reads or writes until the task has ended

    def __len__(self) -> int:
        return self._n

    def _status(self, what: int, timeout: float | None) -> int:
        status = self._state(what, timeout)
        if self._span is not None and what == _lib.DONE and status != Status.PENDING:
            self._span.end("" if status == Status.OK else Status(status).name)
        return status

    def _state(self, what: int, timeout: float | None) -> int:
        endless = _lib.milliseconds(timeout) < 0  # also validates timeout
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
            if status == Status.PENDING:
                raise errors.Timeout("wait for a task: the timeout passed")
            raise _lib.library().error(status)

    def done(self) -> bool:
        """Report whether the task has ended, with or without an error.

        A dump has ended once it is durable.
        """
        return self._status(_lib.DONE, 0) != Status.PENDING

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the task has ended, with or without an error. Returns False on timeout.

        timeout is in seconds; None waits without limit.
        """
        return self._status(_lib.DONE, timeout) != Status.PENDING

    def result(self, timeout: float | None = None) -> None:
        """Wait until the task has ended. Raises the error of the first failed block, or Timeout."""
        self._wait(_lib.DONE, timeout)

    def succeeded(self) -> bool:
        """Report whether the task has ended without an error in any block."""
        return self._status(_lib.DONE, 0) == Status.OK

    def results(self) -> list[Result]:
        """Return the outcome of each block. Raises Timeout if the task has not ended."""
        out = (_lib.BlockResult * self._n)()
        if status := _lib.library().status("results", self._handle, out, self._n):
            raise _lib.library().error(status)
        return [Result(Status(r.status), bool(r.undefined)) for r in out]

    def cancel(self) -> None:
        """Request cancellation. The task ends when the hardware has stopped."""
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
            if (span := getattr(self, "_span", None)) is not None:
                span.end()  # nobody has seen the end
            _lib.library().status("free", handle)


class _Wait(NamedTuple):
    task: Task
    what: int
    future: asyncio.Future[None]
    begin: float


_awaited: queue.SimpleQueue[_Wait] = queue.SimpleQueue()


@functools.cache
def _watch() -> None:
    """Start the thread that polls all awaited tasks.

    With a pool of threads that wait, all threads could wait for tasks that depend on a wait for
    which no thread is left.
    """
    threading.Thread(target=_poll_awaited, name="kvlane", daemon=True).start()


def _poll_awaited() -> None:
    waits: list[_Wait] = []
    pause = 0.0
    while True:
        with suppress(queue.Empty):
            while True:
                waits.append(_awaited.get(timeout=pause if waits else None))
                pause = 0
        begin = time.monotonic()
        waits = [w for w in waits if not _resolved(w)]
        age = begin - waits[-1].begin if waits else 0
        if waits and age < _YOUNG:
            # Wait in the library: the call returns as soon as the task ends, and it speeds up small
            # loads.
            waits[-1].task._status(waits[-1].what, 1e-3)
        else:
            pause = max(min(age / 16, _PAUSE), 4 * (time.monotonic() - begin))


def _resolved(wait: _Wait) -> bool:
    """Wake the waiter if its task has reached the awaited state or the waiter is cancelled.

    Returns False if the wait continues.
    """
    if not wait.future.cancelled() and wait.task._status(wait.what, 0) == Status.PENDING:
        return False
    with suppress(RuntimeError):  # the loop is closed
        wait.future.get_loop().call_soon_threadsafe(_wake, wait.future)
    return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Load(Task):
    """A load or a prefetch."""

    def seconds(self) -> float:
        """Return the load's duration, without the wait for `after`. 0 for a prefetch.

        Raises Timeout if the load has not ended.
        """
        out = ctypes.c_double()
        status = _lib.library().status("load_seconds", self._handle, ctypes.byref(out))
        if status:
            raise _lib.library().error(status)
        return out.value

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Wait until layers 0 to layer are on all their pages. For layerwise loads."""
        self._wait(_lib.number(layer, "layer", most=2**31 - 1), timeout)

    async def layer(self, layer: int) -> None:
        """Like wait_layer, for asyncio."""
        await self._awaited(_lib.number(layer, "layer", most=2**31 - 1))


class Dump(Task):
    """A dump. It has ended once it is durable."""

    def source_free(self, timeout: float | None = None) -> None:
        """Wait until the pages may be changed."""
        self._wait(_lib.SOURCE_FREE, timeout)

    def published(self, timeout: float | None = None) -> None:
        """Wait until lookups find the blocks."""
        self._wait(_lib.PUBLISHED, timeout)

    def left_out(self) -> list[LeftOut]:
        """Return the tiers that did not store all blocks so far: they were full, failed or were gone.

        These blocks are durable in another tier, or have failed if there is none.
        """
        return [LeftOut(**t) for t in _lib.library().json("left_out", self._handle)]

    def submit_layer(self, layer: int, after: Any = None) -> None:
        """Let a layerwise dump read a layer once the current work on the stream `after` is done."""
        _lib.library().call("submit_layer", self._handle, _lib.number(layer, "layer", most=2**32 - 1), after_of(after))


def stream_of(stream: Any) -> int:
    """Return the handle of a CUDA stream, given as a number or a torch.cuda.Stream."""
    return int(getattr(stream, "cuda_stream", stream))


def after_of(stream: Any) -> Any:
    """Return a kvl_after, or NULL for None."""
    return None if stream is None else ctypes.byref(_lib.After(stream_of(stream)))
