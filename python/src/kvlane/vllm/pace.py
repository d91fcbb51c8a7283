"""Measurement of vLLM's computing speed in its scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

FEW = 256  # the duration of a step of fewer tokens is the least time of a step


class Pace:
    """Measures the durations of steps.

    While a request continues from one step to the next, there is no gap between the steps. The time
    between their starts is then the duration of the first. lag is the number of steps that the
    scheduler has scheduled and the model has not computed: 1, or 2 with asynchronous scheduling.
    The result of a step is known when the step `lag` steps later starts.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._steps: deque[tuple[float, Mapping[str, int], bool]] = deque(maxlen=lag + 2)

    def step(self, now: float, tokens: Mapping[str, int], loads: bool) -> tuple[int, float] | None:
        """Record a scheduled step, with the number of tokens of each request.

        loads: the step waits for loads. Returns the tokens of an earlier step, and the seconds until
        its result was known, or None if they cannot be determined.
        """
        self._steps.append((now, dict(tokens), loads))
        if len(self._steps) <= self._lag:
            return None
        began, ended, loaded = self._steps[-1 - self._lag]
        n = sum(ended.values())
        if loaded or n < 1 or not ended.keys() & tokens.keys():
            return None
        if len(self._steps) > self._lag + 1:
            _, before, waited = self._steps[0]
            if waited or sum(before.values()) >= FEW:  # the device has computed that step first
                if n < FEW:
                    return None
                began = self._steps[-2][0]
        return n, now - began
