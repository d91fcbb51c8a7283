"""Pages that SGLang was told are there, kept until it has loaded them."""

from __future__ import annotations

import threading
import time
from collections import Counter

from ..store import Lease

SECONDS = 10.0
MOST = 64


class Leases:
    """A lease for each name, of which there are MOST at a time, for SECONDS each. Safe from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # how they have begun and ended
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Lease, float]] = {}  # with its deadline, the oldest first

    def keep(self, name: str, lease: Lease) -> None:
        """Holds a lease in place of what the name had. The oldest one goes where there are too many."""
        with self._lock:
            self._pass(time.monotonic())
            self._end(name, "replaced")
            while len(self._held) >= MOST:
                self._end(next(iter(self._held)), "crowded_out")
            self._held[name] = (lease, time.monotonic() + SECONDS)
            self.counts["taken"] += 1

    def release(self, name: str, why: str) -> None:
        """Ends a name's lease, if it has one."""
        with self._lock:
            self._pass(time.monotonic())
            self._end(name, why)

    def clear(self, why: str) -> None:
        """Ends all."""
        with self._lock:
            for name in list(self._held):
                self._end(name, why)

    def stats(self) -> dict[str, int]:
        """How many are held, and how others have ended."""
        with self._lock:
            self._pass(time.monotonic())
            return {"held": len(self._held), **self.counts}

    def _pass(self, now: float) -> None:
        """Ends those whose time has passed, which the store has let go by itself."""
        for name in [name for name, (_, deadline) in self._held.items() if deadline <= now]:
            self._end(name, "expired")

    def _end(self, name: str, why: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            held[0].release()
            self.counts[why] += 1
