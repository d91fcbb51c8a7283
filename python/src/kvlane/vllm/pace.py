"""Measurement of vLLM's computing speed in its scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Pace:
    """Measures the durations of steps.

    While a request continues from one step to the next, there is no gap between the steps. The time
    between their starts is then the duration of the first. lag is the number of steps that the
    scheduler has scheduled and the model has not computed: 1, or 2 with asynchronous scheduling.
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
