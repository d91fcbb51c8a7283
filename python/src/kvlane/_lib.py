"""Binding of libkvlane by ctypes. The library is loaded on first use and never unloaded.

No other module depends on kvlane.h.
"""

from __future__ import annotations

import ctypes as c
import json
import math
import operator
import os
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import errors
from .errors import Status

ABI = 3
KEY_BYTES = 32
HASH_BYTES = 32
DONE, SOURCE_FREE, PUBLISHED = -1, -2, -3
LAYERWISE, AWAITED, PROMOTE, BYPASS = 1, 2, 4, 8
HOST, DEVICE = 0, 1

# Seconds of one wait in the library. Between waits Python handles signals.
SLICE = 0.1

HERE = Path(__file__).parent / "lib"


class GroupMemory(c.Structure):
    """kvl_group_memory."""

    _fields_ = (
        ("planes", c.POINTER(c.c_uint64)),
        ("n_planes", c.c_size_t),
        ("n_pages", c.c_int64),
        ("page_bytes", c.c_int64),
        ("stride", c.c_int64),
    )


class After(c.Structure):
    """kvl_after."""

    _fields_ = (("stream", c.c_uint64),)


class BlockResult(c.Structure):
    """kvl_result."""

    _fields_ = (("status", c.c_int32), ("undefined", c.c_uint32))


class Event(c.Structure):
    """kvl_event."""

    _fields_ = (("change", c.c_uint8), ("tier", c.c_uint8), ("key", c.c_uint8 * KEY_BYTES))


class Blocks(c.Structure):
    """kvl_blocks."""

    _fields_ = (("groups", c.POINTER(c.c_uint32)), ("hashes", c.c_void_p), ("hash_bytes", c.c_size_t), ("n", c.c_size_t))


_handle, _out = c.c_uint64, c.POINTER(c.c_uint64)
# Keys, hashes and pages are passed as addresses: c_void_p takes bytes, arrays and numbers.
_bytes, _n, _ms = c.c_void_p, c.c_size_t, c.c_int64

# The functions that return a status, with the types of their arguments.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "open": (c.c_char_p, _out),
    "read_config": (c.c_char_p, _bytes, c.POINTER(_n)),
    "close": (_handle, _ms),
    "register_cache": (_handle, c.POINTER(GroupMemory), _n, _out),
    "close_cache": (_handle, _ms),
    "hash_tokens": (_bytes, _bytes, _n, _n, _bytes),
    "keys": (_handle, c.c_uint32, _bytes, _n, _n, _bytes),
    "lookup": (_handle, _bytes, _n, _bytes, _ms),
    "lease_blocks": (_handle, _bytes, _n, _ms, _ms, _out, c.POINTER(_n)),
    "worth": (_handle, c.c_int64, c.c_int64, c.POINTER(_n)),
    "report_computed": (_handle, c.c_int64, c.c_double),
    "report_delay": (_handle, c.c_double),
    "release": (_handle,),
    "load_blocks": (_handle, _handle, _handle, _bytes, _bytes, _n, _bytes, c.c_uint32, c.POINTER(After), _out),
    "dump_blocks": (_handle, _handle, _bytes, _bytes, _n, _bytes, c.c_uint32, c.POINTER(After), _out),
    "submit_layer": (_handle, c.c_uint32, c.POINTER(After)),
    "prefetch": (_handle, _bytes, _n, _out),
    "wait": (_handle, c.c_int32, _ms),
    "results": (_handle, c.POINTER(BlockResult), _n),
    "left_out": (_handle, _bytes, c.POINTER(_n)),
    "load_seconds": (_handle, c.POINTER(c.c_double)),
    "cancel": (_handle,),
    "free": (_handle,),
    "stream_wait": (_handle, c.c_uint64, _handle, c.c_int32),
    "register_memory": (_handle, c.c_uint64, c.c_uint64, c.c_uint32, _out),
    "unregister_memory": (_handle, _ms),
    "open_stream": (_handle, _out),
    "close_stream": (_handle, _ms),
    "copy": (_handle, _handle, _bytes, _handle, _bytes, _bytes, _n, c.POINTER(After), _ms, _out),
    "open_allocator": (c.c_char_p, c.c_int32),
    "allocator_stats": (c.c_int32, _bytes, c.POINTER(_n)),
    "stats": (_handle, _bytes, c.POINTER(_n)),
    "metrics": (_handle, _bytes, c.POINTER(_n)),
    "notes": (_handle, _bytes, c.POINTER(_n)),
    "report_slowdown": (_handle, c.c_double),
    "set_anchors": (_handle, _bytes, _bytes, _n),
    "drop": (_handle, _bytes, _n, c.POINTER(_n)),
    "remove": (_handle, _bytes, _n, _ms, c.POINTER(_n)),
    "pin": (_handle, _bytes, _n, _ms),
    "unpin": (_handle, _bytes, _n, _ms),
    "why": (_handle, _bytes, _n, _ms, _bytes, c.POINTER(_n)),
    "events": (_handle, c.POINTER(Event), c.POINTER(_n)),
    "open_manager": (c.c_char_p, _out),
    "close_manager": (_handle, _ms),
    "manager_lookup": (_handle, c.POINTER(Blocks), _bytes),
    "manager_worth": (_handle, c.POINTER(Blocks), _bytes, c.c_int64, c.c_int64, c.POINTER(_n)),
    "manager_computed": (_handle, c.c_int64, c.c_double),
    "manager_load": (_handle, c.POINTER(Blocks), _out),
    "manager_store": (_handle, c.POINTER(Blocks), c.POINTER(Blocks), _bytes, _out),
    "manager_forget": (_handle, c.POINTER(Blocks)),
    "manager_touch": (_handle, c.POINTER(Blocks)),
    "manager_set_anchors": (_handle, c.POINTER(Blocks), c.POINTER(Blocks)),
    "manager_reset": (_handle,),
    "manager_stats": (_handle, _bytes, c.POINTER(_n)),
    "job_size": (_handle, c.POINTER(_n), c.POINTER(_n)),
    "job_direct": (_handle, _bytes),
    "job_anchors": (_handle, _bytes, _n),
    "job_evicted": (_handle, _bytes, _bytes, _n, _n),
    "job_loaded": (_handle, c.c_double, c.c_double),
    "job_end": (_handle, _bytes, _n),
}


class Library:
    """The functions of a loaded library.

    `call` raises a returned status as an error. `status` returns it.
    """

    def __init__(self, path: str) -> None:
        try:
            lib = c.CDLL(path)
        except OSError as e:
            raise errors.NotSupported(f"load {path}: {e}") from e
        self.path = path
        self._functions: dict[str, Any] = {}
        lib.kvl_abi.restype = c.c_int
        if (abi := lib.kvl_abi()) != ABI:
            raise errors.NotSupported(f"{path} has ABI {abi}, not {ABI}: install library and package of the same version")
        for name, types in _SIGNATURES.items():
            f = getattr(lib, "kvl_" + name)
            f.argtypes, f.restype = types, c.c_int
            self._functions[name] = f
        for name in ("version", "error"):
            getattr(lib, "kvl_" + name).restype = c.c_char_p
        self._error, self._version = lib.kvl_error, lib.kvl_version

    def version(self) -> str:
        """Return the library's version."""
        return str(self._version().decode())

    def status(self, name: str, *args: Any) -> int:
        """Call kvl_<name> and return its status. Releases the GIL during the call."""
        return int(self._functions[name](*args))

    def error(self, status: int) -> errors.Error:
        """Return the exception for the last status returned to this thread."""
        return errors.of(status, self._error().decode(errors="replace") or Status(status).name)

    def call(self, name: str, *args: Any) -> None:
        """Call kvl_<name>. Raises unless it returns KVL_OK."""
        if status := self.status(name, *args):
            raise self.error(status)

    def finish(self, name: str, handle: int, timeout: float | None) -> None:
        """Call kvl_<name> with a timeout in seconds. Raises unless it returns KVL_OK.

        In the main thread Ctrl-C ends the wait, and the call continues in another thread. The call
        is not repeated with short timeouts, because each timeout would abandon unfinished work.
        """
        args = (name, handle, milliseconds(timeout))
        if (timeout is not None and timeout <= SLICE) or threading.current_thread() is not threading.main_thread():
            self.call(*args)
            return
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                self.call(*args)
            except BaseException as e:  # the waiting thread raises it
                outcome.put(e)
            else:
                outcome.put(None)

        try:
            threading.Thread(target=run, name=f"kvlane {name}", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self.call(*args)
            return
        while True:
            with suppress(queue.Empty):
                if (error := outcome.get(timeout=SLICE)) is not None:
                    raise error
                return

    def json(self, name: str, handle: int, *args: Any) -> Any:
        """Return the parsed JSON that kvl_<name> writes for a handle and other arguments."""
        return json.loads(self.text(name, handle, *args))

    def text(self, name: str, handle: int | bytes, *args: Any) -> bytes:
        """Return the text that kvl_<name> writes for a handle or a text, and other arguments."""
        size = c.c_size_t(1 << 12)
        while True:
            buffer = c.create_string_buffer(size.value)
            status = self.status(name, handle, *args, buffer, c.byref(size))
            if status == Status.OK:
                return buffer.value
            if status != Status.NO_SPACE:
                raise self.error(status)


_library: Library | None = None


def path() -> str:
    """Return the path of the library: KVLANE_LIBRARY, or the file in this package."""
    return os.environ.get("KVLANE_LIBRARY") or str(HERE / "libkvlane.so")


def library() -> Library:
    """Return the library. The first call loads it."""
    global _library  # noqa: PLW0603 -- one per process, as it is never unloaded
    # No lock: a child of fork() could inherit it locked. Concurrent first calls each create a
    # Library for the same shared object, which does no harm.
    if _library is None:
        _library = Library(path())
    return _library


def address(buffer: Any, kind: str) -> tuple[Any, int]:
    """Return a ctypes argument for a contiguous buffer, and its length in bytes.

    Only read-only buffers are copied.
    """
    if isinstance(buffer, bytes):
        return buffer, len(buffer)
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise errors.Invalid(f"{kind} are not contiguous")
    if view.readonly:
        copy = view.tobytes()
        return copy, len(copy)
    return c.byref(c.c_char.from_buffer(view)) if view.nbytes else b"", view.nbytes


_MAX_MS = 2**63 - 1


def milliseconds(timeout: float | None) -> int:
    """Convert a timeout from seconds to milliseconds.

    None and infinity give -1, which waits without limit.
    """
    if timeout is None:
        return -1
    if math.isnan(timeout):
        raise errors.Invalid("the timeout is not a number: give seconds, or None to wait without a limit")
    ms = timeout * 1000
    return -1 if ms >= _MAX_MS else max(0, round(ms))


def duration(seconds: float) -> int:
    """Convert a duration from seconds to milliseconds, rounded up to at least 1 unless it is 0.

    Raises Invalid if it is negative, infinite or not a number.
    """
    if not 0 <= seconds < math.inf:
        raise errors.Invalid(f"a time of {seconds} seconds: give a positive number, or 0 for the maximum")
    return min(_MAX_MS, max(1, round(seconds * 1000))) if seconds else 0


def number(value: Any, what: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return value as an int. Raises Invalid outside least..most, as ctypes would truncate it."""
    n = operator.index(value)
    if not least <= n <= most:
        raise errors.Invalid(f"{what} of {n}: must be {least} to {most}")
    return n


class Owned:
    """An object of the library.

    It cannot be copied or pickled: closing the copy would close the original.
    """

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it belongs to this process and ends once")


class Registered(Owned):
    """Memory that is registered with a store."""

    handle: int

    def check(self) -> None:
        """Raise Invalid if the memory was freed or moved since its registration."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """Unregister the memory, after the last access to it.

        After Timeout, close may be called again.
        """
        raise NotImplementedError
