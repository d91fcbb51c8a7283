"""Blocks of jobs that the scheduler's side of kvlane.vllm sends to the workers' side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm.v1.kv_offload.base import LoadStoreSpec

GROUP_BYTES = 4


@dataclass
class Blocks(LoadStoreSpec):
    """The blocks of a job, in the order of its pages, and the blocks that workers drop before it.

    A block's name is a hash followed by the number of its page group: 4 bytes, most significant
    first. layerwise: the job runs layer by layer during the step. before: the name of the block
    that precedes the first in its prompt, for a store that starts within a prompt. direct: the
    blocks of files that a load reads do not enter the workers' memory. anchors: Job.anchors, if
    block servers store the blocks. keys: vLLM's keys of the blocks, for events, if they differ from
    the names.
    """

    names: list[bytes]
    evicted: list[bytes]
    layerwise: bool = False
    before: bytes | None = None
    direct: bool = False
    anchors: list[bytes] | None = None
    keys: list[bytes] | None = None


def by_group(names: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Return the hashes of blocks by page group, in the order of the names."""
    out: dict[int, list[bytes]] = {}
    for name in names:
        out.setdefault(int.from_bytes(name[-GROUP_BYTES:], "big"), []).append(name[:-GROUP_BYTES])
    return out
