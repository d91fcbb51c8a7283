"""Results of a step from a worker to vLLM's scheduler.

vLLM takes a step's results once its work is launched, and reads them once that work is done: it
sends them to the scheduler's process, or the scheduler reads them. Loads that end in between are
results of this step too, so they are collected when the results are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

from .events import Change


class LateLoads:
    """Loads that end before a step's results are read.

    collect returns the requests and the metadata of these loads. It is called once, by the thread
    that reads the results first.
    """

    def __init__(self, collect: Callable[[], tuple[set[str], WorkerMetadata]]) -> None:
        self._collect = collect
        self._found: tuple[set[str], WorkerMetadata] | None = None

    def get(self) -> tuple[set[str], WorkerMetadata]:
        """Return the requests whose loads have ended, and the metadata of their jobs."""
        if self._found is None:
            self._found = self._collect()
        return self._found


class Requests(Set[str]):
    """Requests whose loads have ended. Late loads are added when it is read. Pickles as a set."""

    def __init__(self, known: set[str], late: LateLoads) -> None:
        self._known, self._late = known, late

    def _all(self) -> set[str]:
        return self._known | self._late.get()[0]

    def __bool__(self) -> bool:
        """Return True: vLLM must keep the set, which may grow."""
        return True

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __contains__(self, request: object) -> bool:
        return request in self._all()

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self._all()),)

    @classmethod
    def _from_iterable(cls, it: Any) -> Any:
        return set(it)


@dataclass
class WorkerMetadata(OffloadingWorkerMetadata):
    """Metadata from workers to the scheduler.

    For each job it has the names of failed blocks, the names of blocks of a direct job that are in
    memory, and the duration of a load and of its step's wait for it, in seconds. events are the
    changes of the workers' tiers. Call read before using the fields. Pickling calls it.
    """

    failed: dict[int, set[bytes]] = field(default_factory=dict)
    pooled: dict[int, set[bytes]] = field(default_factory=dict)
    times: dict[int, tuple[float, float]] = field(default_factory=dict)
    late: LateLoads | None = None
    events: list[Change] = field(default_factory=list)

    def read(self) -> None:
        """Add the loads that have ended since the worker created this object."""
        if self.late is not None:
            _, late = self.late.get()
            self.late = None
            both: Any = super().aggregate(late)
            self.completed_jobs, self.transfer_stats = both.completed_jobs, both.transfer_stats
            self.times |= late.times

    def __getstate__(self) -> dict[str, Any]:
        self.read()
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """Return the combined metadata of two workers in one step."""
        assert isinstance(other, WorkerMetadata)
        self.read()
        other.read()
        both: Any = super().aggregate(other)
        failed, pooled = _union(self.failed, other.failed), _union(self.pooled, other.pooled)
        times = dict(self.times)
        for job, (elapsed, waited) in other.times.items():
            longest, most = times.get(job, (0.0, 0.0))
            times[job] = (max(longest, elapsed), max(most, waited))
        events = self.events + other.events
        return WorkerMetadata(both.completed_jobs, both.transfer_stats, failed, pooled, times, events=events)


def _union(a: dict[int, set[bytes]], b: dict[int, set[bytes]]) -> dict[int, set[bytes]]:
    return {job: a.get(job, set()) | b.get(job, set()) for job in a.keys() | b.keys()}
