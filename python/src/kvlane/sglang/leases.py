"""Leases of pages that SGLang found in a lookup, held until it has loaded them."""

from __future__ import annotations

import threading
import time
from collections import Counter

from ..store import Lease

SECONDS = 10.0
MOST = 64


class Leases:
    """At most MOST leases with names, each held for at most SECONDS. Safe from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # leases taken, and leases ended by reason
        self._lock = threading.Lock()
        self._leases: dict[str, tuple[Lease, float]] = {}  # with the deadline, oldest first

    def keep(self, name: str, lease: Lease) -> None:
        """Add a lease, replacing the previous one of that name.

        If there are more than MOST, releases the oldest.
        """
        with self._lock:
            self._pass(time.monotonic())
            self._end(name, "replaced")
            while len(self._leases) >= MOST:
                self._end(next(iter(self._leases)), "crowded_out")
            self._leases[name] = (lease, time.monotonic() + SECONDS)
            self.counts["taken"] += 1

    def release(self, name: str, why: str) -> None:
        """Release a name's lease, if it has one."""
        with self._lock:
            self._pass(time.monotonic())
            self._end(name, why)

    def clear(self, why: str) -> None:
        """Release all leases."""
        with self._lock:
            for name in list(self._leases):
                self._end(name, why)

    def stats(self) -> dict[str, int]:
        """Return the number of leases held, and the number ended by reason."""
        with self._lock:
            self._pass(time.monotonic())
            return {"held": len(self._leases), **self.counts}

    def _pass(self, now: float) -> None:
        """Remove leases past their deadline. The store has released them already."""
        for name in [name for name, (_, deadline) in self._leases.items() if deadline <= now]:
            self._end(name, "expired")

    def _end(self, name: str, why: str) -> None:
        entry = self._leases.pop(name, None)
        if entry is not None:
            entry[0].release()
            self.counts[why] += 1
