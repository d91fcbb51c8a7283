"""Tests kvlane's metrics on vLLM's /metrics, with values set by the test and with a Prometheus
that scrapes a running vLLM."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import prometheus_client
import pytest

from kvlane.vllm.metrics import PromMetrics, Reader, Stats, parse, spread

from .conftest import LIMIT, command
from .test_engine import POOL, RESET, ask, prompt

DOCS = Path(__file__).parents[3] / "docs"

TEXT = """# HELP kvlane_store_loads_total Load tasks begun.
# TYPE kvlane_store_loads_total counter
kvlane_store_loads_total {loads}
# HELP kvlane_tier_blocks Blocks held.
# TYPE kvlane_tier_blocks gauge
kvlane_tier_blocks{{tier="cache"}} {blocks}
kvlane_tier_blocks{{tier="file"}} 7
# HELP kvlane_copy_seconds Duration of a batch.
# TYPE kvlane_copy_seconds histogram
kvlane_copy_seconds_bucket{{path="kernel",direction="load",le="0.1"}} {fast}
kvlane_copy_seconds_bucket{{path="kernel",direction="load",le="1"}} {all}
kvlane_copy_seconds_bucket{{path="kernel",direction="load",le="+Inf"}} {all}
kvlane_copy_seconds_sum{{path="kernel",direction="load"}} {sum}
kvlane_copy_seconds_count{{path="kernel",direction="load"}} {all}
# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 9
"""


def text(loads: int, blocks: int, fast: int, total: int, seconds: float) -> str:
    return TEXT.format(loads=loads, blocks=blocks, fast=fast, all=total, sum=seconds)


def test_only_changes_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    now = [text(2, 5, 1, 3, 1.5)]
    reader = Reader(lambda: now[0])
    first = reader.changed()
    assert sorted(first) == ["kvlane_copy_seconds", "kvlane_store_loads_total", "kvlane_tier_blocks"]
    now[0] = text(6, 4, 1, 5, 2.5)
    assert reader.changed() == {}, "not twice in 5 seconds"
    clock[0] += 5
    later = reader.changed()
    assert later["kvlane_store_loads_total"]["values"] == [[[], 4]]
    assert later["kvlane_tier_blocks"]["values"] == [[["cache"], 4]]
    assert later["kvlane_copy_seconds"]["values"] == [[["kernel", "load"], [0, 2, 0, 1.0]]]
    clock[0] += 5
    assert reader.changed() == {}


# Two workers and the scheduler send metrics over several steps through vLLM's own channel between
# processes. All arrive in vLLM's Prometheus registry.
def test_what_ranks_send_is_served() -> None:
    def sent(rank: str, *texts: str) -> Stats:
        out = Stats()
        for t in texts:
            out.add(rank, parse(t))
        return out

    stats = sent("0", text(2, 5, 1, 3, 1.5))
    stats.increase_counter("vllm:kv_offload_load_bytes", 4096)
    stats = (
        stats.aggregate(sent("1", text(1, 9, 0, 1, 0.7), text(1, 8, 0, 0, 0)))
        .aggregate(Stats())
        .aggregate(sent("0", text(3, 6, 0, 1, 0.5)))
    )
    assert not stats.is_empty()
    assert Stats().is_empty()
    assert stats.reduce()["kvlane_store_loads_total"] == 2 + 3 + 1 + 1
    received = Stats(data=msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()), type=dict[str, Any]))
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}))
    kinds = {c: c for c in (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)}
    for collector in list(prometheus_client.REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("vllm:"):
            prometheus_client.REGISTRY.unregister(collector)
    prom = PromMetrics(config, kinds, ["engine"], {0: ["0"]})
    prom.observe(received.to_dict())

    def value(name: str, **labels: str) -> float | None:
        found: float | None = prometheus_client.REGISTRY.get_sample_value(name, {"engine": "0", **labels})
        return found

    assert value("vllm:kv_offload_load_bytes_total") == 4096
    assert value("kvlane_store_loads_total", rank="0") == 5
    assert value("kvlane_store_loads_total", rank="1") == 2
    assert value("kvlane_tier_blocks", rank="0", tier="cache") == 6
    assert value("kvlane_tier_blocks", rank="1", tier="cache") == 8
    of = {"rank": "0", "path": "kernel", "direction": "load"}
    assert value("kvlane_copy_seconds_bucket", le="0.1", **of) == 1
    assert value("kvlane_copy_seconds_bucket", le="1.0", **of) == 4
    assert value("kvlane_copy_seconds_count", **of) == 4
    assert value("kvlane_copy_seconds_sum", **of) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("counts", "total"),
    [([3, 0, 0], 0.2), ([1, 2, 0], 1.5), ([0, 4, 1], 14.0), ([0, 0, 2], 30.0), ([0, 0, 0], 0.0), ([5, 0, 0], 0.0)],
)
def test_observations_have_the_counts_and_the_sum(counts: list[float], total: float) -> None:
    bounds = [0.1, 1.0]
    values = spread(counts, bounds, total)
    assert sum(v * n for v, n in values) == pytest.approx(total, abs=1e-3)
    edges = [0.0, *bounds, float("inf")]
    found = [sum(n for v, n in values if lo < v <= hi) for lo, hi in itertools.pairwise(edges)]
    assert found == counts


def queries() -> Iterator[tuple[str, str]]:
    """Yields the queries of the dashboard, and those of the alert rules without their thresholds."""
    dashboard = json.loads((DOCS / "grafana" / "kvlane.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
    yield "variable instance", "kvlane_build_info"
    for rule in re.finditer(r"- alert: (\w+)\n +expr: (.+)\n", (DOCS / "alerts.yml").read_text()):
        yield rule[1], re.sub(r" (==|>) [0-9.]+$", "", rule[2])


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Any]:
    """Runs a Prometheus that scrapes a port of this machine every second. Yields a function that
    returns the series of a query."""
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(DOCS / "alerts.yml")],
                "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
            }
        )
    )
    log = folder / "prometheus.log"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb", "--web.listen-address=127.0.0.1:0"]
    with log.open("w") as out, subprocess.Popen([command("prometheus"), *arguments], stderr=out) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not (
                found := re.search(r"Listening on\" address=127\.0\.0\.1:(\d+).*Server is ready", log.read_text(), re.DOTALL)
            ):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)

            def ask_it(query: str) -> list[Any]:
                url = f"http://127.0.0.1:{found[1]}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                with urllib.request.urlopen(url, timeout=LIMIT) as answer:
                    series: list[Any] = json.load(answer)["data"]["result"]
                    return series

            yield ask_it
        finally:
            process.terminate()


# Every query of the dashboard and the alert rules returns a series for a running vLLM with
# multiprocessing.
def test_prometheus_finds_a_series_for_each_query(start: Any, tmp_path: Path) -> None:
    subprocess.run([command("promtool"), "check", "rules", str(DOCS / "alerts.yml")], check=True, capture_output=True)
    store = {"store": POOL | {"dirs": [str(tmp_path / "kv")], "file_bytes": 1 << 30}}
    engine = start([ask(prompt(1)), RESET] * 10000, kvlane=store, processes=True, metrics=True)
    engine.has_printed("METRICS ")
    port = int(re.findall(r"^METRICS (\d+)$", engine.text(), re.MULTILINE)[0])
    with prometheus(tmp_path, port) as ask_it:
        left = dict.fromkeys(queries())
        left["hits", 'kvlane_store_hits_total{rank="0",tier="cache"} >= 8'] = None
        left["scheduler", 'kvlane_manager_blocks{rank="scheduler"} > 0'] = None
        assert len(left) > 50
        deadline = time.monotonic() + LIMIT
        while left := {q: None for q in left if not ask_it(q[1])}:
            assert engine.processes(), engine.text()[-4000:]
            assert time.monotonic() < deadline, f"no series for {list(left)}"
            time.sleep(0.5)
    engine.kill()


# With metrics_addr each process serves its own metrics at its own address.
def test_processes_serve_their_own_metrics(start: Any, tmp_path: Path) -> None:
    from test_metrics import page

    addr = f"unix:{tmp_path}/{{rank}}.sock"
    engine = start([ask(prompt(1)), RESET] * 10000, kvlane={"store": POOL, "metrics_addr": addr}, processes=True)
    engine.has_printed("STEP")
    for name, metric in (("scheduler", "kvlane_manager_stored_total"), ("0", "kvlane_store_dumped_blocks_total")):
        assert page(tmp_path / f"{name}.sock", "/readyz") == (200, "ready\n")
        _, served = page(tmp_path / f"{name}.sock", "/metrics")
        assert parse(served)[metric]["values"][0][1] > 0
    assert engine.kill()
