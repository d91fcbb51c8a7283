"""Dumps whose files are still being written, and counts of blocks that could not be written."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from . import errors
from .errors import Status
from .task import Dump

STORED = (Status.OK, Status.EXISTS)
LOG_SECONDS = 60.0


class LimitedLog:
    """Counts failures by kind.

    Logs the first failure of a kind, and then at most one in LOG_SECONDS, with the count. Safe from
    any thread.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._logger, self._clock = logger, clock
        self._lock = threading.Lock()
        # by kind: the time and the count of the last record
        self._logged: dict[str, tuple[float, int]] = {}

    def add(self, kind: str, n: int, text: str) -> None:
        """Count n failures.

        text is the message to log, in which %d stands for the number since the last record.
        """
        with self._lock:
            self.counts[kind] += n
            total, now = self.counts[kind], self._clock()
            when, before = self._logged.get(kind, (float("-inf"), 0))
            if now - when < LOG_SECONDS:
                return
            self._logged[kind] = now, total
        self._logger.warning(text + " (%d in all; such failures are logged once in %d s)", total - before, total, LOG_SECONDS)


class Writes:
    """Dumps whose blocks are published and are still written to files.

    A block that cannot be written stays in memory and is found there. It is counted and logged; the
    dump does not fail. Safe from any thread.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(logger, clock)
        self._lock = threading.Lock()
        self._tasks: list[Dump] = []

    @property
    def counts(self) -> Counter[str]:
        """Blocks that could not be written, by status."""
        return self._log.counts

    def add(self, task: Dump) -> None:
        """Follow a dump whose blocks are published."""
        task._keep = None  # its pages are no longer read
        with self._lock:
            self._tasks.append(task)
        self.poll()

    def poll(self) -> None:
        """Count the failed blocks of the dumps that have ended since the last call."""
        with self._lock:
            ended = [t for t in self._tasks if t.done()]
            self._tasks = [t for t in self._tasks if t not in ended]
        for task in ended:
            try:
                statuses = [r.status for r in task.results()]
                self.note(statuses)
                self.note_left_out(task, sum(s not in STORED for s in statuses))
            except errors.Error as e:  # the store is closed, and the result unknown
                self._log.add(
                    type(e).__name__, len(task), "%d blocks may not have been written to files: " + str(e).replace("%", "%%")
                )

    def note(self, statuses: Iterable[Status]) -> None:
        """Count the blocks that were not written, by the statuses of blocks that are in memory."""
        for status, n in Counter(s for s in statuses if s not in STORED).items():
            self._log.add(
                status.name,
                n,
                f"%d blocks could not be written to files ({status.name}) and stay in memory alone. If the disk is full, make "
                "space or lower file_bytes: writing resumes by itself",
            )

    def note_left_out(self, task: Dump, failed: int) -> None:
        """Count and log the blocks of an ended dump that a tier lacks and other tiers have.

        failed is the number of blocks that no tier stored.
        """
        for left in task.left_out():
            if left.blocks > failed:
                cause = left.cause.replace("%", "%%")
                self._log.add(
                    f"left out of {left.tier}",
                    left.blocks - failed,
                    f"tier {left.tier} did not store %d blocks, which other tiers have: {cause}",
                )

    def finish(self, timeout: float | None = None) -> None:
        """Wait until the dumps have ended, and count their failed blocks.

        timeout covers all dumps, in seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            tasks = list(self._tasks)
        for task in tasks:
            if not task.wait(None if end is None else max(0.0, end - time.monotonic())):
                break
        self.poll()
