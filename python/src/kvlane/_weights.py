"""Detection of changes to a model's modules, weights and adapters. Each load and save checks."""

from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from . import identity

_MODULES, _PARAMETERS, _BUFFERS, _VERSION, _VALUES = (
    operator.attrgetter("_modules"), operator.attrgetter("_parameters"), operator.attrgetter("_buffers"),
    operator.attrgetter("_version"), dict.values,
)  # fmt: skip
# Approximate number of elements to sample from each tensor. A few are enough to detect a write to
# the whole tensor, such as an optimiser step or a copy of other weights.
_ELEMENTS = 16
_HOST = "cpu"  # the device whose memory is read by address


class Weights:
    """A model's modules, tensors and adapters."""

    def __init__(self, model: Any) -> None:
        # The modules are listed once, because listing them takes longer than all other checks.
        # state() compares the children of each module and so detects replaced modules.
        self._modules = list(model.modules())
        self._adapted = [m for m in self._modules if identity.adapted(m)]
        configs = (vars(m).get("config") for m in self._modules)
        self._configs = list({id(c): c for c in configs if c is not None}.values())
        self._places: Any = None
        self._samples = _Samples(())

    def implementations(self) -> list[str]:
        """Return the implementations of attention and experts of each configuration."""
        names = ("_attn_implementation", "_experts_implementation")
        return [str(getattr(c, name, None)) for c in self._configs for name in names]

    def state(self) -> tuple[Any, ...]:
        """Return a value that changes with modules, tensors, adapters or implementations.

        It changes if a module, parameter or buffer is replaced, written to or moved. torch does not
        count writes through `data`; samples of the values detect them.
        """
        # Each load checks hundreds of tensors, so loops over them run in C.
        every = itertools.chain.from_iterable
        children = tuple(map(id, every(map(_VALUES, map(_MODULES, self._modules)))))
        tables = itertools.chain(map(_PARAMETERS, self._modules), map(_BUFFERS, self._modules))
        tensors = [t for t in every(map(_VALUES, tables)) if t is not None]
        places = tuple(map(torch.Tensor.data_ptr, tensors)), tuple(map(torch.Tensor.numel, tensors))
        try:
            versions = tuple(map(_VERSION, tensors))
        except RuntimeError:  # made under inference_mode: these tensors have no version
            versions = tuple(-1 if t.is_inference() else t._version for t in tensors)
        if places != self._places:
            self._places, self._samples = places, _Samples(tensors)
        adapters = [identity.adapters(m) for m in self._adapted]
        return children, places, versions, adapters, self.implementations(), self._samples.read(tensors)


class _Samples:
    """Evenly spread elements of tensors, valid while the tensors are not moved.

    It holds no reference to a tensor, so that memory released by the model is freed.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        # by element size and address modulo that size
        addresses: dict[tuple[int, int], list[int]] = {}
        # For other devices: indices of tensors, and the size and stride of each sample.
        self._groups: dict[Any, tuple[list[int], list[tuple[int]], list[tuple[int]]]] = {}
        for i, t in enumerate(tensors):
            if not t.numel() or not t.data_ptr():
                continue
            size, elements = t.element_size(), 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
            step = max(1, elements // _ELEMENTS)
            if t.device.type == _HOST:
                places = range(t.data_ptr(), t.data_ptr() + elements * size, step * size)
                addresses.setdefault((size, t.data_ptr() % size), []).extend(places)
            else:
                numbers, sizes, strides = self._groups.setdefault((t.device, t.dtype), ([], [], []))
                numbers.append(i)
                sizes.append((-(-elements // step),))
                strides.append((step,))
        self._host = [_memory(size, places) for (size, _), places in addresses.items()]

    def read(self, tensors: Sequence[Any]) -> list[bytes]:
        """Return the samples of these tensors. They must be the ones passed to the constructor."""
        out = [memory[at] for memory, at in self._host]
        with torch.no_grad():
            for numbers, sizes, strides in self._groups.values():
                out.append(torch.cat(list(map(torch.as_strided, (tensors[i] for i in numbers), sizes, strides))))
            return [identity._bytes(t.view(torch.uint8).cpu()) for t in out]


def _memory(size: int, addresses: Sequence[int]) -> tuple[Any, Any]:
    """Return host memory as one tensor of elements of a size, and the indices of addresses.

    The tensor does not own the memory. A single tensor for all samples is used because one call of
    torch per tensor would take longer than the rest of a load.
    """
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[size]
    first, end = min(addresses), max(addresses) + size
    memory = torch.frombuffer((ctypes.c_uint8 * (end - first)).from_address(first), dtype=kind)
    return memory, torch.tensor([(a - first) // size for a in addresses])
