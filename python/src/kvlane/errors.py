"""What goes wrong, as exceptions of one hierarchy: Error, with the library's status."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What the library's functions return, as kvlane.h has it."""

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
    """An error of the library. Its text says what and, where there is something, what to do."""

    status = Status.FAILED


class Timeout(Error, TimeoutError):
    """The time passed; the same call may be made again."""

    status = Status.PENDING


class Invalid(Error, ValueError):
    """Wrong arguments: the same call will fail again."""

    status = Status.INVALID


class NotFound(Error, LookupError):
    """A miss."""

    status = Status.NOT_FOUND


class Exists(Error):
    """Is there already, or somebody is making it."""

    status = Status.EXISTS


class NotSupported(Error):
    """The machine, driver, build or model lacks what the call needs."""

    status = Status.NOT_SUPPORTED


class Busy(Error):
    """A bounded resource is used up for now."""

    status = Status.BUSY


class NoMemory(Error, MemoryError):
    """No memory."""

    status = Status.NO_MEMORY


class NoSpace(Error):
    """A storage tier is full."""

    status = Status.NO_SPACE


class ReadOnly(Error):
    """The tier is read-only."""

    status = Status.READ_ONLY


class Corrupt(Error):
    """Stored bytes failed their check: a miss."""

    status = Status.CORRUPT


class Mismatch(Error):
    """Of another model, layout or format."""

    status = Status.MISMATCH


class Canceled(Error):
    """Was cancelled."""

    status = Status.CANCELED


class Expired(Error):
    """A lease expired or was released before the call."""

    status = Status.EXPIRED


class Closed(Error):
    """The store, or the object of the call, is closed."""

    status = Status.CLOSED


class Broken(Error):
    """An earlier failure stopped this."""

    status = Status.BROKEN


class Forked(Error):
    """Called in a child of fork(), where the library's threads are not: open a store in the child, before the parent does,
    or use "spawn".
    """

    status = Status.FORKED


class Failed(Error):
    """Anything else."""

    status = Status.FAILED


_BY_STATUS: dict[int, type[Error]] = {
    c.status: c
    for c in (
        Timeout, Invalid, NotFound, Exists, NotSupported, Busy, NoMemory, NoSpace, ReadOnly, Corrupt, Mismatch, Canceled, Expired,
        Closed, Broken, Forked, Failed,
    )
}  # fmt: skip


def of(status: int, text: str) -> Error:
    """The exception for a status. One that this package does not know is Failed."""
    return _BY_STATUS.get(status, Failed)(text)
