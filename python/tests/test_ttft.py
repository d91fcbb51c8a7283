"""The example that measures time to first token, on a tiny model: all sources are there, and identical."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")  # conftest fails where it is required
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
    "load call, disk, past the page cache",
)


def test_a_tiny_model(tmp_path: Path) -> None:
    out = tmp_path / "ttft.json"
    command = [sys.executable, str(SCRIPT), "--tokens", "65,130", "--repeat", "2", "--json", str(out), "--dir", str(tmp_path)]
    command += ["--decode-beside", "--decode-seconds", "4"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads(out.read_text())
    for source in SOURCES:
        rows = [r for r in report["rows"] if r["source"] == source]
        assert [(r["tokens"], r["identical"]) for r in rows] == [(65, True), (130, True)], source
    assert report["decode_beside"]["loads"] > 0
    assert report["decode_beside"]["tokens_per_s_alone"] > 0
    assert set(report["rates"]) == {"copy", "page cache", "disk"}
    assert not list(tmp_path.glob("kvlane-ttft-*"))
