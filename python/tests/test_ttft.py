"""Runs the examples that measure time to first token on a tiny model: all sources are measured,
with identical tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # conftest.py fails if KVLANE_REQUIRE names torch
pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "examples" / "ttft" / "ttft.py"
SOURCES = (
    "kept on the device",
    "torch, pinned by hand",
    "kvlane, in memory",
    "kvlane, in the page cache",
    "kvlane, on disk",
    "kvlane, after a restart",
    "load call, default policy",
    "load call, disk",
)


def in_processes(n: int, *args: str) -> Any:
    """Runs the tensor-parallel example in n processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    command += [str(SCRIPT.with_name("tp.py")), "--tokens", "128", "--prefixes", "2", "--generate", "6", *args]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)


def test_a_tiny_model_in_two_processes(tmp_path: Path) -> None:
    """Two processes compute the same as one, each its part, and each loads what it has stored."""
    reports = []
    for n in (1, 2):
        out = tmp_path / f"{n}.json"
        done = in_processes(n, "--requests", "4", "--json", str(out))
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        reports.append(json.loads(out.read_text()))
    assert [r["kind"] for r in reports[1]["table"]] == ["without", "with kvlane"]
    for r in reports[1]["table"]:
        assert r["requests"] == 2
        assert all(r[name] > 0 for name in ("ttft_p50_ms", "tpot_p50_ms", "itl_p50_ms"))
    assert len(reports[0]["tokens"]) == 6
    assert reports[0]["tokens"] == reports[1]["tokens"]


def test_a_budget_ends_requests() -> None:
    done = in_processes(2, "--budget", "0")
    assert done.returncode != 0
    assert "used up after 0 requests" in done.stderr, done.stderr[-2000:]


def test_a_tiny_model(tmp_path: Path) -> None:
    out = tmp_path / "ttft.json"
    command = [sys.executable, str(SCRIPT), "--tokens", "65,130", "--repeat", "2", "--json", str(out), "--dir", str(tmp_path)]
    command += ["--decode-beside", "--decode-seconds", "4"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads(out.read_text())
    assert report["machine"]["device"] == report["device"] == "CPU"
    assert report["machine"]["command"].startswith("python examples/ttft/ttft.py --tokens 65,130 ")
    for source in SOURCES:
        rows = [r for r in report["rows"] if r["source"] == source]
        assert [(r["tokens"], r["identical"]) for r in rows] == [(65, True), (130, True)], source
    assert report["decode_beside"]["load_gb_per_s"] > 0
    assert report["decode_beside"]["tokens_per_s_alone"] > 0
    assert set(report["rates"]) == {"copy", "page cache", "disk"}
    assert not list(tmp_path.glob("kvlane-ttft-*"))
