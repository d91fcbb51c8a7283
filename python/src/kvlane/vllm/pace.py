"""Measurement of vLLM's computing speed in its scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Pace:
    """Durations of steps.

    Steps follow one another without a gap while a request continues from one to the next. The time
    between them is then the duration of the step that just ended. lag is one plus the number of
    steps by which the scheduler is ahead of the model.
    """

    def __init__(self, lag: int) -> None:
        self._steps: deque[tuple[float, Mapping[str, int], bool]] = deque(maxlen=lag + 1)

    def step(self, now: float, tokens: Mapping[str, int], loads: bool) -> tuple[int, float] | None:
        """Record a scheduled step, with the number of tokens of each request.

        loads: the step waits for loads. Returns the tokens and seconds of an earlier step, or None
        if its duration cannot be determined.
        """
        self._steps.append((now, dict(tokens), loads))
        if len(self._steps) < (self._steps.maxlen or 0):
            return None
        _, ended, loaded = self._steps[0]
        n = sum(ended.values())
        if loaded or n < 1 or not ended.keys() & tokens.keys():
            return None
        return n, now - self._steps[-2][0]
