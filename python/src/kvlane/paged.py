"""Paged KV caches in tensors and arrays. Finds the pages without importing torch or numpy."""

from __future__ import annotations

import array
import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _lib, errors

if TYPE_CHECKING:
    from types import TracebackType

    from .store import Store

# The library's names of element types, by the names of torch, numpy or configurations.
_DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32", "f32": "float32",
    "fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
}  # fmt: skip
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
# Element types of engines that store raw bytes, by size.
_RAW = {1: ("int8", "uint8"), 2: ("int16", "uint16"), 4: ("int32", "uint32")}


@dataclass(frozen=True)
class Memory:
    """Memory of a tensor or array: its address, and the sizes and byte strides of dimensions."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    device: str  # "cpu", "cuda:0"
    owner: Any

    @classmethod
    def of(cls, tensor: Any) -> Memory:
        """Return the memory of a torch tensor, or of an object that has __array_interface__."""
        if hasattr(tensor, "data_ptr"):
            size = tensor.element_size()
            return cls(
                tensor.data_ptr(), tuple(tensor.shape), tuple(s * size for s in tensor.stride()), size,
                str(tensor.dtype).removeprefix("torch."), str(tensor.device), tensor,
            )  # fmt: skip
        if (face := getattr(tensor, "__array_interface__", None)) is None:
            raise errors.Invalid(f"a {type(tensor).__name__} is not a tensor or array")
        address, read_only = face["data"]
        if read_only:
            raise errors.Invalid("the array is read-only, but loads write to it")
        return cls(address, tuple(face["shape"]), tuple(tensor.strides), tensor.itemsize, str(tensor.dtype), "cpu", tensor)

    def moved(self) -> bool:
        """Report whether the tensor's memory was freed or moved."""
        t = self.owner
        if not hasattr(t, "data_ptr"):
            return False
        return t.data_ptr() != self.address or self.address == 0

    def check(self, dtype: str, driver: str, index: int) -> list[str]:
        """Return the reasons why the tensor does not fit that element type and device."""
        wrong = []
        name, dtype = _DTYPES.get(self.dtype, self.dtype), _DTYPES.get(dtype, dtype)
        if name != dtype and (self.itemsize != _BYTES.get(dtype) or name not in _RAW.get(self.itemsize, ())):
            wrong.append(f"its elements are {name} and the configuration's {dtype}")
        want = {"host": "cpu", "cuda": f"cuda:{index}"}.get(driver)
        if want is not None and self.device not in (want, want.removesuffix(":0")):
            wrong.append(f"it is on {self.device} and the store on {want}")
        if not self.address:
            wrong.append("it has no memory")
        return wrong


class Group:
    """The tensors of a page group and the position of pages in them.

    layout names the leading dimensions of each tensor: l is the layer, k is K and V, p the page.
    The other dimensions are inside a page.

    "kp": one tensor per layer, [2, pages, ...]. "p": [pages, ...], for MLA, for pages that hold
    both K and V, and for separate tensors of K and V in the order K of layer 0, V of layer 0, and
    so on. "lkp": all layers in one tensor. "plk": pages first.
    """

    def __init__(self, tensors: Any, layout: str = "kp") -> None:
        if set(layout) - set("lkp") or layout.count("p") != 1 or len(set(layout)) != len(layout):
            raise errors.Invalid(f"memory layout {layout!r} must consist of p, and at most one l and one k")
        if hasattr(tensors, "data_ptr") or hasattr(tensors, "__array_interface__"):
            tensors = [tensors]
        self.memory = [Memory.of(t) for t in tensors]
        self.planes: list[int] = []
        if not self.memory:
            raise errors.Invalid("no tensor is given")
        wrong: list[str] = []
        forms = set()
        for i, m in enumerate(self.memory):
            try:
                forms.add(self._add(m, layout))
            except errors.Invalid as e:
                wrong.append(f"tensor {i}, {list(m.shape)}: {e}")
        if wrong:
            raise errors.Invalid("; ".join(wrong))
        if len(forms) > 1:
            raise errors.Invalid(f"the tensors differ in (pages, bytes of a page, bytes from page to page): {sorted(forms)}")
        self.pages, self.page_bytes, self.stride = forms.pop()

    def _add(self, m: Memory, layout: str) -> tuple[int, int, int]:
        if len(m.shape) <= len(layout):
            raise errors.Invalid(f"it has no dimensions inside a page, with memory layout {layout!r}")
        n = len(layout)
        expected = m.itemsize
        for size, stride in zip(reversed(m.shape[n:]), reversed(m.strides[n:]), strict=True):
            if size != 1 and stride != expected:
                raise errors.Invalid("its pages are not contiguous")
            expected *= size
        at = layout.index("p")
        # layer by layer, K before V
        order = [i for i in sorted(range(n), key=lambda i: "lkp".index(layout[i])) if i != at]
        if any(m.strides[i] < 0 for i in range(n)):
            raise errors.Invalid("its strides are negative")
        for place in itertools.product(*(range(m.shape[i]) for i in order)):
            self.planes.append(m.address + sum(m.strides[i] * k for i, k in zip(order, place, strict=True)))
        page = math.prod(m.shape[n:]) * m.itemsize
        return m.shape[at], page, m.strides[at] if m.shape[at] > 1 else page


@dataclass
class Addresses:
    """A page group given by addresses on the store's device, for memory without tensors.

    keep is a reference to objects that must outlive the group.
    """

    planes: Sequence[int]
    pages: int
    page_bytes: int
    stride: int = 0
    keep: Any = None
    memory: tuple[Memory, ...] = ()


def _uint64(numbers: Sequence[int]) -> Any:
    """Return the numbers as an array of uint64 for the library.

    An array.array("Q") is not copied.
    """
    if isinstance(numbers, array.array) and numbers.typecode == "Q":
        return (ctypes.c_uint64 * len(numbers)).from_buffer(numbers)
    return (ctypes.c_uint64 * len(numbers))(*numbers)


class PagedCache(_lib.Registered):
    """A paged KV cache that a store loads into and dumps from.

    It consists of tensors with a memory layout, or a Group or Addresses for each page group. It
    keeps the tensors. Use it in a with statement, or close it before the store. Otherwise the
    store's close closes it.
    """

    def __init__(
        self, store: Store, tensors: Any = None, layout: str = "kp", *, groups: Sequence[Group | Addresses] | None = None
    ) -> None:
        if (tensors is None) == (groups is None):
            raise errors.Invalid("give tensors, or groups")
        self.groups: tuple[Group | Addresses, ...] = tuple(groups) if groups is not None else (Group(tensors, layout),)
        wrong = [
            f"page group {g}, tensor {i}: {text}"
            for g, group in enumerate(self.groups)
            for i, m in enumerate(group.memory)
            for text in m.check(store.dtype(g), store.driver, store.device_index)
        ]
        if wrong:
            raise errors.Invalid("register KV cache: " + "; ".join(wrong))
        memory = (_lib.GroupMemory * len(self.groups))()
        for m, group in zip(memory, self.groups, strict=True):
            m.planes = _uint64(group.planes)
            m.n_planes, m.n_pages, m.page_bytes, m.stride = len(group.planes), group.pages, group.page_bytes, group.stride
        self.store = store
        self.handle = store._register("register_cache", self, store._caches, memory, len(memory))
        self._tensors = [m for group in self.groups for m in group.memory if hasattr(m.owner, "data_ptr")]

    def check(self) -> None:
        """Raise Invalid if a tensor's memory was freed or moved since it was registered."""
        for m in self._tensors:
            if m.moved():
                raise errors.Invalid(
                    "the memory of a registered tensor was freed or moved: close the PagedCache and make a new one"
                )

    def close(self, timeout: float | None = None) -> None:
        """Wait until the pages are no longer accessed and unregister them.

        After Timeout the tensors must stay, and close may be called again.
        """
        self.store._close_cache(self, timeout)

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
