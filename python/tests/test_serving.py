"""The parts of examples/serving that need neither vLLM nor a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "serving.py"
if not EXAMPLE.exists():
    pytest.skip("the examples are not here", allow_module_level=True)


@pytest.fixture(scope="module")
def serving() -> Any:
    spec = importlib.util.spec_from_file_location("serving", EXAMPLE)
    assert spec
    assert spec.loader
    module = sys.modules["serving"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RESULT = {f"{s}_{m}_ms": v for m, v in (("ttft", 100.0), ("tpot", 20.0), ("itl", 21.0)) for s in ("mean", "median", "p99")} | {
    "completed": 40, "failed": 0, "duration": 10.0, "total_token_throughput": 3000.0, "ttfts": [0.1],
}  # fmt: skip


def test_workloads_run_on_the_sides_that_are_named(serving: Any) -> None:
    assert serving.plan("memory,none:gpu", ["none", "connector"]) == {"memory": ["none", "connector"], "gpu": ["none"]}


def test_counters_are_summed_over_labels(serving: Any) -> None:
    text = (
        '# HELP vllm:prefix_cache_queries_total x\nvllm:prefix_cache_queries_total{engine="0"} 100.0\n'
        'vllm:prefix_cache_queries_total{engine="1"} 60.0\nvllm:external_prefix_cache_hits_total{engine="0"} 40.0\n'
        'vllm:external_prefix_cache_queries_total{engine="0"} 9.0\n'
    )
    assert serving.counters(text) == {"queried": 160.0, "gpu_hits": 0.0, "external_hits": 40.0}


def test_figures_and_table(serving: Any) -> None:
    rows = [
        {"workload": "memory", "concurrency": 1, "side": "none"}
        | serving.figures(RESULT | {"median_ttft_ms": ttft}, {"queried": 200.0, "gpu_hits": 20.0, "external_hits": 100.0})
        for ttft in (100.0, 90.0, 130.0)
    ]
    assert rows[0]["ttfts_ms"] == [100.0]
    line = serving.table(rows).splitlines()[2]
    assert line == "| memory | 1 | none | 100.0 (90.0 to 130.0) | 100.0 | 100.0 | 20.0 | 21.0 | 3000 | 10% | 50% |"
    assert serving.figures(RESULT, {"queried": 0.0, "gpu_hits": 0.0, "external_hits": 0.0})["gpu_hit_rate"] == 0.0


def test_turns_extend_their_conversation(serving: Any, tmp_path: Path) -> None:
    a = serving.arguments(["--conversations", "2", "--turns", "3", "--turn-tokens", "5"])
    prompts = [json.loads(line)["prompt"] for line in serving.turns(tmp_path, a).read_text().splitlines()]
    assert [len(p.split()) for p in prompts] == [5, 5, 10, 10, 15, 15]
    assert prompts[4].startswith(prompts[2])
    assert prompts[2].startswith(prompts[0])
    assert not prompts[3].startswith(prompts[0])


def test_connector_of_each_side(serving: Any) -> None:
    known = serving.sides(2, {"log_seconds": 5})
    config = json.loads(known["layerwise"].args[1])
    assert config["kv_connector"] == "LayerwiseConnector"
    assert config["kv_connector_extra_config"] == {"store": {"cache_bytes": 2 << 30}, "log_seconds": 5}
    assert known["none"].args == ()


def test_missing_server_is_reported(serving: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no GPU\n")
    process = serving.subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    with pytest.raises(RuntimeError, match=r"server x does not answer.*\nno GPU"):
        serving.Server("x", process, serving.free_port(), log).wait(serving.time.monotonic() + 5)
