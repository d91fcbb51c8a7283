"""What the scheduler's side of kvlane.vllm tells the workers' side, and what it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm.v1.kv_offload.base import LoadStoreSpec

GROUP_BYTES = 4


@dataclass
class Blocks(LoadStoreSpec):
    """A job's blocks, in the order of its pages, and those that the workers drop before.

    A block's name is a hash and the number of its page group: 4 bytes, most significant first. layerwise: the model runs
    meanwhile, and says layer by layer what it needs or has computed. before: the name of the block before the first in its
    prompt, if a job that stores begins within one.
    """

    names: list[bytes]
    evicted: list[bytes]
    layerwise: bool = False
    before: bytes | None = None


def by_group(names: Iterable[bytes]) -> dict[int, list[bytes]]:
    """The hashes of blocks by page group, in the order of the names."""
    out: dict[int, list[bytes]] = {}
    for name in names:
        out.setdefault(int.from_bytes(name[-GROUP_BYTES:], "big"), []).append(name[:-GROUP_BYTES])
    return out
