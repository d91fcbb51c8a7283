"""Tests the command lines, the plan and the statistics of the example that compares vLLM servers,
without vLLM."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "serving" / "serving.py"

if not SCRIPT.exists():
    pytest.skip("the examples are not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))
serving: Any = importlib.import_module("serving")

RESULT: dict[str, Any] = {
    f"{s}_{m}_ms": 10.0 * i + j for i, m in enumerate(("ttft", "tpot", "itl")) for j, s in enumerate(("mean", "median", "p99"))
}
RESULT |= {"completed": 20, "failed": 1, "duration": 2.5, "total_token_throughput": 300.4, "ttfts": [0.0125]}


def transfer(side: Any) -> Any:
    return json.loads(side.args[side.args.index("--kv-transfer-config") + 1])


def test_sides_differ_by_their_connector_alone() -> None:
    known = serving.sides(1.5, {"admission": "always"}, {"weights": "w"})
    store = {"cache_bytes": 3 << 29, "admission": "always"}
    assert known["none"].args == ()
    assert known["vllm"].args == ("--kv-offloading-size", "1.5", "--kv-offloading-backend", "native")
    for name, connector, more in (
        ("connector", "Connector", {"store": store}),
        ("layerwise", "LayerwiseConnector", {"store": store}),
        ("nic", "Connector", {"store": {**store, "gdr": "require"}}),
        ("softnic", "Connector", {"store": {**store, "gdr": "require"}, "rdma": {"provider": "soft"}}),
    ):
        config = transfer(known[name])
        assert config["kv_connector"] == connector
        assert config["kv_load_failure_policy"] == "recompute"
        assert config["kv_connector_extra_config"] == {"weights": "w", **more}
    # The baseline of LayerwiseConnector uses the same scheduler and model runner as it.
    assert "--no-async-scheduling" in known["none-sync"].args
    assert "--no-async-scheduling" in known["layerwise"].args
    assert known["none-sync"].env == known["layerwise"].env == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def test_servers_get_the_same_arguments() -> None:
    a = serving.arguments(["--server-args", "--tensor-parallel-size 2 --hf-overrides '{\"a\": 1}'"])
    known = serving.sides(1, {}, {})
    common = serving.serve_command(a, known["none"], Path("/m"), 80)
    assert common[-5:] == ["dummy", "--tensor-parallel-size", "2", "--hf-overrides", '{"a": 1}']
    for side in known.values():
        command = serving.serve_command(a, side, Path("/m"), 80)
        assert command == [*common, *side.args]
    a.model = "/m"
    assert "--load-format" not in serving.serve_command(a, known["none"], Path("/m"), 80)


def test_rounds_are_interleaved() -> None:
    a = serving.arguments(["--sides", "none,vllm", "--workloads", "memory,none:gpu", "--concurrency", "1,4", "--rounds", "2"])
    assert list(serving.plan(a)) == [
        serving.Run(name, 8192, c, n, side)
        for n in (1, 2)
        for name, sides in (("memory", ("none", "vllm")), ("gpu", ("none",)))
        for c in (1, 4)
        for side in sides
    ]
    a = serving.arguments(["--sides", "none", "--workloads", "memory/2048/16,gpu/64", "--rounds", "1"])
    assert list(serving.plan(a)) == [serving.Run("memory", 2048, 16, 1, "none"), serving.Run("gpu", 64, 1, 1, "none")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--sides", "none,other"], "no side other: the sides are none, "),
        (["--workloads", "memory,other"], "no workload other: the workloads are memory, "),
        (["--workloads", "vllm:gpu", "--sides", "none"], "no side vllm: the sides are none, "),
    ],
)
def test_wrong_names(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serving.arguments(args)
    assert message in capsys.readouterr().err


def test_workloads_with_new_prompts_change_with_the_seed(tmp_path: Path) -> None:
    a = serving.arguments([])
    for name in serving.WORKLOADS:
        first, second = (serving.workload(a, name, 8192, seed, tmp_path) for seed in (1001, 1002))
        assert (first == second) is (name in serving.FILLED), name
    online = serving.workload(a, "online", 8192, 1, tmp_path)
    assert online[online.index("--random-prefix-len") :] == [
        "--random-prefix-len", "819", "--random-input-len", "205", "--random-output-len", "128", "--num-prompts", "20",
    ]  # fmt: skip


def test_turns_extend_their_conversation() -> None:
    a = serving.arguments(["--conversations", "2", "--turns", "3", "--turn-tokens", "5"])
    prompts = [p.split() for p in serving.turns(a, 1)]
    assert [len(p) for p in prompts] == [5, 5, 10, 10, 15, 15]
    for before, after in zip(prompts[:-2], prompts[2:], strict=True):
        assert after[: len(before)] == before
    assert prompts[0] != prompts[1]
    assert serving.turns(a, 1) != serving.turns(a, 2)


def test_hit_rates_are_sums_over_engines() -> None:
    metrics = """# HELP vllm:prefix_cache_queries_total Queries.
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 300.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1e+02
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 16.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 77.0
"""
    found = serving.counters(metrics)
    assert found == {"queried": 400, "gpu_hits": 100, "external_hits": 16}
    of = serving.figures(RESULT, found)
    assert (of["gpu_hit_rate"], of["external_hit_rate"]) == (0.25, 0.04)
    assert of["ttfts_ms"] == [12.5]
    assert serving.figures(RESULT, dict.fromkeys(found, 0.0))["gpu_hit_rate"] == 0


def test_a_table_has_medians_and_spread_of_rounds() -> None:
    tokens = {"queried": 100.0, "gpu_hits": 10.0, "external_hits": 88.0}
    rows = [
        {"workload": "memory", "tokens": 512, "concurrency": 1, "side": side}
        | serving.figures(RESULT | {"median_ttft_ms": ms}, tokens)
        for side, ms in (("none", 9.0), ("connector", 5.0), ("none", 1.0), ("none", 2.0))
    ]
    lines = serving.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2] == (
        "| memory, 512 | 1 | none | 2.0 (1.0 to 9.0) | 0.0 | 2.0 | 10.00 | 11.00 | 12.00 |"
        " 20.00 | 21.00 | 22.00 | 300 | 10%, 88% | 60, 3 |"
    )
    assert lines[3].startswith("| memory, 512 | 1 | connector | 5.0 (5.0 to 5.0) |")
    assert {line.count("|") for line in lines} == {16}


def test_a_server_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no NIC is there\n")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    server = serving.Server("nic", tmp_path, process, serving.free_port(), log)
    with pytest.raises(RuntimeError, match="server nic does not answer; its log ends:\nno NIC is there"):
        server.wait(serving.time.monotonic() + 60)


def test_a_traced_side_keeps_its_scheduler(tmp_path: Path) -> None:
    plain, traced = serving.sides(1, {}, {}), serving.sides(1, {}, {}, tmp_path)
    assert traced["none"] == plain["none"]
    for name in ("vllm", "connector", "layerwise"):
        assert ("--no-async-scheduling" in traced[name].args) is ("--no-async-scheduling" in plain[name].args)
        assert transfer(traced[name])["kv_connector_module_path"] == "traced"
        assert traced[name].env.keys() - plain[name].env.keys() == {"PYTHONPATH", "KVLANE_TRACE"}


def test_a_trace_is_split_at_its_calls(tmp_path: Path) -> None:
    traced: Any = importlib.import_module("traced")
    calls = [
        ["add_request", 1.000, 1.001, "r"],
        ["get_num_new_matched_tokens", 1.002, 1.003, ["r", [64, True]]],
        ["schedule", 1.002, 1.004, {}],
        ["start_load_kv", 1.005, 1.006, None],
        ["_result", 1.020, 1.020, [3e9, 0.012]],
        ["schedule", 1.022, 1.023, {"r": 8}],
        ["execute_model", 1.024, 1.030, ["r"]],
        ["update_from_output", 1.040, 1.041, ["r"]],
    ]
    (tmp_path / "t").write_text("".join(json.dumps(c) + "\n" for c in calls))
    (row,) = traced.requests([traced.Call(*c) for c in calls])
    assert {k: round(v, 3) for k, v in row.items()} == {
        "tokens": 64, "in all": 41, "connector's code": 2, "until the lookup": 2, "lookup to load": 2,
        "start of load to schedule": 17, "load": 12, "GB": 3, "schedule to launch": 2, "step to first token": 17,
    }  # fmt: skip
    assert "1 loaded 64 tokens: in all 41.00" in traced.report(tmp_path / "t")


def test_every_planned_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running, most, filled = list[str](), 0, list[tuple[str, str]]()

    @contextlib.contextmanager
    def servers(a: Any, chosen: dict[str, Any], model: Path, logs: Path) -> Any:
        yield {name: name for name in chosen if name != "vllm"}

    def drive(a: Any, server: str, work: list[str], concurrency: int, scratch: Path) -> dict[str, Any]:
        nonlocal most
        running.append(server)
        most = max(most, len(running) if len(filled) > 5 else 0)  # all servers are filled at the same time
        filled.append((server, work[work.index("--prefix-repetition-prefix-len") + 1]))
        time.sleep(0.05)
        running.remove(server)
        return dict(serving.figures(RESULT, {"queried": 0.0, "gpu_hits": 0.0, "external_hits": 0.0}))

    monkeypatch.setattr(serving, "serving", servers)
    monkeypatch.setattr(serving, "drive", drive)
    monkeypatch.setattr(serving, "about", dict)
    out = tmp_path / "out.json"
    args = ["--model", "m", "--sides", "none,vllm,connector", "--workloads", "memory/64/4,none:gpu/64,memory/32", "--rounds", "2"]
    assert serving.main([*args, "--json", str(out)]) == 1  # a server is missing
    report = json.loads(out.read_text())
    assert report["not_measured"] == ["vllm"]
    names = [(r["workload"], r["tokens"], r["concurrency"], r["round"], r["side"]) for r in report["rows"]]
    assert names == [
        run
        for n in (1, 2)
        for run in (
            ("memory", 64, 4, n, "none"), ("memory", 64, 4, n, "connector"), ("gpu", 64, 1, n, "none"),
            ("memory", 32, 1, n, "none"), ("memory", 32, 1, n, "connector"),
        )
    ]  # fmt: skip
    assert sorted(filled[:5]) == sorted(
        [("none", "64"), ("none", "64"), ("connector", "64"), ("none", "32"), ("connector", "32")]
    )
    assert most == 1, "the servers get requests in turns"
    assert "not measured: side vllm" in capsys.readouterr().out
