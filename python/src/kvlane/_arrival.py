"""Layers of a cache of transformers that are loaded while the model computes."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicLayer

from . import errors
from ._model import CACHE_OPTIONS

if TYPE_CHECKING:
    from .store import Store
    from .task import Load


def uses(past: weakref.ref[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a computation of those arguments goes on from a cache."""
    cache = past()
    return cache is not None and any(kwargs.get(name) is cache for name in CACHE_OPTIONS)


class Arrival:
    """Loads into a cache's layers that are under way. The model's computation waits for each layer where it comes to it, on the
    device if it computes there, and at its end for the loads' results. Whoever else looks at a layer waits for the results.

    free is closed, and ended called with what failed, if anything, once: at the end of that computation, or earlier.
    """

    def __init__(
        self,
        model: Any,
        past: Any,
        tasks: Sequence[Load],
        *,
        store: Store,
        device: Any,
        free: contextlib.ExitStack,
        ended: Callable[[errors.Error | None], None],
    ) -> None:
        self.error: errors.Error | None = None
        self._store, self._device, self._past = store, device, weakref.ref(past)
        self._tasks, self._free, self._tell = tasks, free, ended
        self._lock, self._ended, self._within = threading.Lock(), False, False
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._over, with_kwargs=True, always_call=True),
        ]

    def _begin(self, _module: Any, _args: Any, kwargs: Any) -> None:
        self._within = uses(self._past, kwargs)

    def _over(self, _module: Any, _args: Any, kwargs: Any, _output: Any) -> None:
        if self._within and uses(self._past, kwargs):
            self._within = False
            self.end()
            if self.error is not None:
                raise self.error

    def wait(self, layer: int) -> None:
        """Waits for one of the store's layers, as is said above. Raises what the loads failed with."""
        if not self._within:
            self.end()
        for task in self._tasks:
            self._wait(task, layer)
        if self.error is not None:
            raise self.error

    def _wait(self, task: Load, layer: int) -> None:
        if self._device.type == "cuda":
            with contextlib.suppress(errors.Busy, errors.NotSupported):  # too many streams wait, or this one captures a graph
                self._store.stream_wait(torch.cuda.current_stream(self._device), task, layer)
                return
        with contextlib.suppress(errors.Error):  # the results say it
            task.wait_layer(layer)

    def end(self) -> None:
        """Waits for the loads, and gives back what they needed."""
        with self._lock:
            if self._ended:
                return
            for hook in self._hooks:
                hook.remove()
            with self._free:
                for task in self._tasks:
                    try:
                        task.result()
                    except errors.Error as e:
                        self.error = e
            self._ended, self._tasks = True, ()  # which keep the tensors
            self._tell(self.error)


class ArrivingLayer(DynamicLayer):  # type: ignore[misc] # which mypy does not see
    """A layer whose keys and values are on their way. Once somebody has asked for them, and waited, it is a DynamicLayer."""

    arrival: Arrival
    number: int  # of the store's layer

    @classmethod
    def make(cls, layer: DynamicLayer, arrival: Arrival, number: int) -> None:
        """Makes a DynamicLayer that has its keys and values one."""
        layer.arrival, layer.number = arrival, number
        layer.__class__ = cls

    def arrive(self) -> None:
        """Waits for them, as an Arrival says."""
        self.arrival.wait(self.number)
        del self.arrival, self.number
        self.__class__ = DynamicLayer

    def __getattribute__(self, name: str) -> Any:
        if name in ("keys", "values"):
            self.arrive()
            return self.__dict__[name]
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("keys", "values"):
            self.arrive()
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.arrive()  # who copies it, or writes it to a file, has a DynamicLayer
        return self.__reduce_ex__(protocol)

    def get_seq_length(self) -> int:
        """How many tokens there are, which is known before."""
        return int(self.__dict__["keys"].shape[-2])
