"""kvlane's metrics on vLLM's own /metrics.

During a step, at most every 5 seconds, a worker reads its store's metrics and sends the changes to
the scheduler. The scheduler adds its own. vLLM passes them on to its API server. The API server's
Prometheus client has them under the names of docs/metrics.md, with vLLM's labels and the label
"rank".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics

from .. import errors

_SECONDS = 5.0  # between two readings, each of which takes milliseconds of a step
_OURS = "kvlane"  # the key of kvlane's part of the statistics
_PREFIX = "kvlane_"

# A family: {"type", "help", "labels": names, "bounds": of buckets, "values": [[label values,
# value], ...]}. The value of a counter is its growth, that of a gauge its value, that of a
# histogram the growth of each bucket by itself and of the sum.
Families = dict[str, dict[str, Any]]


def parse(text: str) -> Families:
    """Parse metrics in Prometheus's text format.

    Returns kvlane's families, with absolute values.
    """
    out: Families = {}
    help_text, family = "", dict[str, Any]()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_text = line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = {"type": kind, "help": help_text, "labels": [], "bounds": [], "values": []}
            if name.startswith(_PREFIX):
                out[name] = family
        elif line:
            _sample(family, line)
    return out


def _sample(family: dict[str, Any], line: str) -> None:
    key, number = line.rsplit(" ", 1)
    name, _, inside = key.partition("{")
    pairs = [pair.split('="', 1) for pair in inside[:-2].split('",')] if inside else []
    names, values = [p[0] for p in pairs], [p[1] for p in pairs]
    value = float(number)
    if family["type"] != "histogram":
        family["labels"] = names
        family["values"].append([values, value])
        return
    if name.endswith("_bucket"):
        bound = values.pop()
        family["labels"] = names[:-1]
        if not family["values"] or family["values"][-1][0] != values:
            family["values"].append([values, []])
            family["bounds"] = []
        if bound != "+Inf":
            family["bounds"].append(float(bound))
        counts = family["values"][-1][1]
        counts.append(value - sum(counts))
    elif name.endswith("_sum"):
        family["values"][-1][1].append(value)


class Reader:
    """Reader of the changes of a store's or a manager's metrics."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._last: dict[tuple[str, ...], Any] = {}
        self._due = 0.0

    def changed(self) -> Families:
        """Return the changes since the last reading, at most every 5 seconds.

        The first call returns all metrics.
        """
        if (now := time.monotonic()) < self._due:
            return {}
        self._due = now + _SECONDS
        out: Families = {}
        try:
            text = self._read()
        except errors.Error:  # not open yet, or closed
            return out
        for name, family in parse(text).items():
            values = []
            for labels, value in family["values"]:
                key = (name, *labels)
                before = self._last.get(key)
                if value == before:
                    continue
                self._last[key] = value
                values.append([labels, _growth(family["type"], value, before)])
            if values:
                out[name] = family | {"values": values}
        return out


def _growth(kind: str, value: Any, before: Any) -> Any:
    if kind == "gauge" or before is None:
        return value
    if kind == "histogram":
        return [a - b for a, b in zip(value, before, strict=True)]
    return value - before


class Stats(OffloadingConnectorStats):
    """vLLM's statistics of offloading, with kvlane's metrics by rank."""

    def add(self, rank: str, families: Families) -> None:
        """Add the changes of a rank."""
        ours = self.data.setdefault(_OURS, {}).setdefault(rank, {})
        for name, family in families.items():
            if name not in ours:
                ours[name] = family | {"values": [[list(labels), value] for labels, value in family["values"]]}
                continue
            known = {tuple(labels): value for labels, value in ours[name]["values"]}
            for labels, value in family["values"]:
                key = tuple(labels)
                known[key] = _sum(family["type"], known[key], value) if key in known else value
            ours[name]["values"] = [[list(labels), value] for labels, value in known.items()]

    def aggregate(self, other: KVConnectorStats) -> Stats:
        """Add the statistics of another process, or of a later step."""
        super().aggregate(other)
        for rank, families in other.data.get(_OURS, {}).items():
            self.add(rank, families)
        return self

    def is_empty(self) -> bool:
        """Report whether nothing has changed."""
        return super().is_empty() and not any(self.data.get(_OURS, {}).values())

    def reduce(self) -> dict[str, int | float]:
        """Return the values of vLLM's log line.

        kvlane's counters that have grown are added, summed over ranks and labels.
        """
        out: dict[str, int | float] = super().reduce()
        for families in self.data.get(_OURS, {}).values():
            for name, family in families.items():
                grown = sum(v for _, v in family["values"]) if family["type"] == "counter" else 0
                if grown:
                    out[name] = out.get(name, 0) + grown
        return out


def _sum(kind: str, a: Any, b: Any) -> Any:
    if kind == "gauge":
        return b
    return [x + y for x, y in zip(a, b, strict=True)] if kind == "histogram" else a + b


def spread(counts: list[float], bounds: list[float], total: float) -> list[tuple[float, int]]:
    """Return (value, count) pairs that reproduce a histogram's buckets and its sum.

    counts are the numbers of values in the buckets that end at the bounds, and in the last bucket,
    which has no bound. total is the sum of the values.
    """
    low = sum(n * lo for n, lo in zip(counts, [0.0, *bounds], strict=True))
    # The values in the last bucket get the rest of the total in equal parts.
    last = counts[-1]
    most = bounds[-1] + max(0.0, total - low) / last if last else bounds[-1]
    wide = sum(n * (hi - lo) for n, lo, hi in zip(counts, [0.0, *bounds], [*bounds, most], strict=True))
    share = min(1.0, max(1e-3, (total - low) / wide)) if wide else 1.0
    return [
        (lo + share * (hi - lo), round(n)) for n, lo, hi in zip(counts, [0.0, *bounds], [*bounds, most], strict=True) if round(n)
    ]


class PromMetrics(OffloadPromMetrics):
    """vLLM's metrics of offloading, and kvlane's. A metric is created with its first value."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        # Unregister the metrics of an earlier engine in this process, as vLLM does with its own.
        for collector in list(REGISTRY._collector_to_names):
            if str(getattr(collector, "_name", "")).startswith(_PREFIX):
                REGISTRY.unregister(collector)
        self._types = {"counter": metric_types[Counter], "gauge": metric_types[Gauge], "histogram": metric_types[Histogram]}
        self._made: dict[str, Any] = {}

    def _metric(self, name: str, family: dict[str, Any]) -> Any:
        if name not in self._made:
            more: dict[str, Any] = {}
            if family["type"] == "gauge":
                more["multiprocess_mode"] = "mostrecent"
            elif family["type"] == "histogram":
                more["buckets"] = family["bounds"]
            labels = [*self._labelnames, "rank", *family["labels"]]
            self._made[name] = self._types[family["type"]](name=name, documentation=family["help"], labelnames=labels, **more)
        return self._made[name]

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the changes to the metrics."""
        super().observe(transfer_stats_data, engine_idx)
        for rank, families in transfer_stats_data.get(_OURS, {}).items():
            for name, family in families.items():
                metric = self._metric(name, family)
                for labels, value in family["values"]:
                    series = metric.labels(*self.per_engine_labelvalues[engine_idx], rank, *labels)
                    if family["type"] == "counter":
                        series.inc(value)
                    elif family["type"] == "gauge":
                        series.set(value)
                    else:
                        for duration, n in spread(value[:-1], family["bounds"], value[-1]):
                            for _ in range(n):
                                series.observe(duration)
