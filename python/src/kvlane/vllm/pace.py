"""How long vLLM takes to compute, as its scheduler sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_FEW_TOKENS = 256  # fewer tell of a step's overhead more than of computing


class Pace:
    """Steps follow one another without a gap while a request goes on from one to the next: then the time between them is what the
    one that has just ended took. lag is how many steps the scheduler is ahead of the model, and one.
    """

    def __init__(self, lag: int) -> None:
        self._steps: deque[tuple[float, Mapping[str, int], bool]] = deque(maxlen=lag + 1)

    def step(self, now: float, tokens: Mapping[str, int], loads: bool) -> tuple[int, float] | None:
        """A step is scheduled, of so many tokens of each request; loads: it waits for some. The tokens and seconds of an earlier
        one, if they tell anything.
        """
        self._steps.append((now, dict(tokens), loads))
        if len(self._steps) < (self._steps.maxlen or 0):
            return None
        _, ended, loaded = self._steps[0]
        n = sum(ended.values())
        if loaded or n < _FEW_TOKENS or not ended.keys() & tokens.keys():
            return None
        return n, now - self._steps[-2][0]
