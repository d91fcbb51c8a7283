"""Exceptions of the library. Each class derives from Error and has a status."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """Statuses of the library's functions, as in kvlane.h."""

    OK = 0
    PENDING = 1
    INVALID = -1
    NOT_FOUND = -2
    EXISTS = -3
    NOT_SUPPORTED = -4
    BUSY = -5
    NO_MEMORY = -6
    NO_SPACE = -7
    READ_ONLY = -8
    CORRUPT = -9
    MISMATCH = -10
    CANCELED = -11
    EXPIRED = -12
    CLOSED = -13
    BROKEN = -14
    FORKED = -15
    FAILED = -16


class Error(Exception):
    """An error of the library. Its text describes the failure and, if possible, a remedy."""

    status = Status.FAILED


class Timeout(Error, TimeoutError):
    """The timeout expired. The call may be repeated."""

    status = Status.PENDING


class Invalid(Error, ValueError):
    """Wrong arguments. The same call will fail again."""

    status = Status.INVALID


class NotFound(Error, LookupError):
    """The block is not stored."""

    status = Status.NOT_FOUND


class Exists(Error):
    """The block exists already, or another task is storing it."""

    status = Status.EXISTS


class NotSupported(Error):
    """The machine, driver, build or model lacks a feature that the call needs."""

    status = Status.NOT_SUPPORTED


class Busy(Error):
    """A bounded resource is in use. The call may be repeated later."""

    status = Status.BUSY


class NoMemory(Error, MemoryError):
    """Memory is exhausted."""

    status = Status.NO_MEMORY


class NoSpace(Error):
    """A storage tier is full."""

    status = Status.NO_SPACE


class ReadOnly(Error):
    """The tier is read-only."""

    status = Status.READ_ONLY


class Corrupt(Error):
    """Stored bytes failed verification. Counts as a miss."""

    status = Status.CORRUPT


class Mismatch(Error):
    """Stored data belongs to another model, layout or format."""

    status = Status.MISMATCH


class Canceled(Error):
    """The task was cancelled."""

    status = Status.CANCELED


class Expired(Error):
    """A lease expired or was released before the call."""

    status = Status.EXPIRED


class Closed(Error):
    """The store, or the object of the call, is closed."""

    status = Status.CLOSED


class Broken(Error):
    """An earlier failure stopped the operation."""

    status = Status.BROKEN


class Forked(Error):
    """Called in a child of fork(), which does not have the library's threads.

    Open a store in the child, before the parent does, or use "spawn".
    """

    status = Status.FORKED


class Failed(Error):
    """Any other failure."""

    status = Status.FAILED


_BY_STATUS: dict[int, type[Error]] = {
    c.status: c
    for c in (
        Timeout, Invalid, NotFound, Exists, NotSupported, Busy, NoMemory, NoSpace, ReadOnly, Corrupt, Mismatch, Canceled, Expired,
        Closed, Broken, Forked, Failed,
    )
}  # fmt: skip


def of(status: int, text: str) -> Error:
    """Return the exception for a status. Unknown statuses give Failed."""
    return _BY_STATUS.get(status, Failed)(text)
