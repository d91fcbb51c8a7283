"""Keys of blocks and the hashes they derive from.

One object holds many keys in the library's format.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator
from typing import Any, overload

from . import _lib, errors


class Keys:
    """n keys of 32 bytes each. Immutable.

    keys[i] is the bytes of one key. keys[i:j] and keys + keys are Keys.
    """

    __slots__ = ("raw",)
    raw: bytes

    def __init__(self, raw: bytes | bytearray | Iterable[bytes] = b"") -> None:
        self.raw = bytes(raw) if isinstance(raw, bytes | bytearray) else b"".join(raw)
        if len(self.raw) % _lib.KEY_BYTES:
            raise errors.Invalid(f"{len(self.raw)} bytes of keys: must be a multiple of {_lib.KEY_BYTES}")

    def __len__(self) -> int:
        return len(self.raw) // _lib.KEY_BYTES

    @overload
    def __getitem__(self, i: int) -> bytes: ...
    @overload
    def __getitem__(self, i: slice) -> Keys: ...
    def __getitem__(self, i: int | slice) -> bytes | Keys:
        if isinstance(i, slice):
            first, end, step = i.indices(len(self))
            if step == 1:
                return Keys(self.raw[first * _lib.KEY_BYTES : max(first, end) * _lib.KEY_BYTES])
            return Keys(self[k] for k in range(first, end, step))
        if not -len(self) <= i < len(self):
            raise IndexError(f"key {i} of {len(self)}")
        at = i % len(self) * _lib.KEY_BYTES
        return self.raw[at : at + _lib.KEY_BYTES]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Keys) -> Keys:
        return Keys(self.raw + other.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<{len(self)} keys, {self.raw[:4].hex()}...>" if self.raw else "<no keys>"


def hash_tokens(tokens: Any, block_tokens: int, parent: bytes | None = None) -> bytes:
    """Hash the whole blocks of a prompt's tokens. Each hash is chained to those before it.

    Hash i, of 32 bytes, identifies all tokens up to the end of block i. It is the same in every
    process and on every machine. parent is the hash of the block before the first token.
    """
    if parent is not None and len(parent) != _lib.HASH_BYTES:
        raise errors.Invalid(f"a parent of {len(parent)} bytes is not a hash of {_lib.HASH_BYTES}")
    _lib.number(block_tokens, "block_tokens", least=1)
    raw, n = _lib.address(_int64(tokens), "tokens")
    n //= 8
    if n < block_tokens:
        return b""
    out = bytearray(n // block_tokens * _lib.HASH_BYTES)
    _lib.library().call("hash_tokens", parent, raw, n, block_tokens, _lib.address(out, "hashes")[0])
    return bytes(out)


def _int64(tokens: Any) -> Any:
    """Return tokens as a buffer of int64.

    numpy arrays and arrays of int64 are not copied; tensors and lists are converted.
    """
    if isinstance(tokens, array.array) and tokens.typecode == "q":
        return tokens
    if hasattr(tokens, "__array_interface__") and tokens.dtype.str == "<i8" and tokens.flags.c_contiguous:
        return tokens.reshape(-1)
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    try:
        return array.array("q", tokens)
    except (OverflowError, TypeError, ValueError) as e:
        raise errors.Invalid(f"tokens must be 64-bit integers: {e}") from e


def page_numbers(pages: Any) -> Any:
    """Return page numbers as a buffer of uint32.

    Buffers of 4-byte numbers are not copied; other types are converted.
    """
    try:
        view = memoryview(pages)
    except TypeError:  # lists, tensors
        view = None
    if view is not None and view.format in ("I", "i") and view.c_contiguous:
        return view
    try:
        return array.array("I", pages.tolist() if hasattr(pages, "tolist") else pages)
    except (OverflowError, TypeError, ValueError) as e:
        raise errors.Invalid(f"page numbers: {e}") from e
