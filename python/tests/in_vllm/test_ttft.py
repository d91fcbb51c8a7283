"""Runs the vLLM example that measures time to first token on a tiny model: all sources are
measured, with identical tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[3] / "examples" / "ttft" / "ttft_vllm.py"
HITS = (
    "kept on the device",
    "kvlane, layer by layer: in memory",
    "kvlane: in memory",
    "kvlane: after a restart, page cache",
)


def run(server: Any, folder: Path, *args: str) -> Any:
    command = [sys.executable, str(SCRIPT), "--prompts", "2", "--repeat", "2", "--tokens", "64,128", "--dir", str(folder), *args]
    env = {**os.environ, **server.env, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)


def test_a_tiny_model(server: Any, tmp_path: Path) -> None:
    out = tmp_path / "ttft.json"
    done = run(server, tmp_path, "--engines", "vllm,layerwise,memory,files", "--json", str(out))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads(out.read_text())
    assert not report["wrong"]
    for source in HITS:
        rows = [r for r in report["rows"] if r["source"] == source]
        n = 2 if "restart" in source else 4
        assert [(r["tokens"], r["n"], r["identical"]) for r in rows] == [(64, n, True), (128, n, True)], source
    assert len({str(r["likely"]) for r in report["runs"]}) >= 4, "prompts that differ come to the same"
    assert not list(tmp_path.glob("kvlane-ttft-*"))


def test_what_is_not_there_is_said(server: Any, tmp_path: Path) -> None:
    """No engine has written the files that the engine is to read."""
    done = run(server, tmp_path, "--engines", "files")
    assert done.returncode == 1
    assert "64 tokens, kvlane: after a restart, page cache: [0] tokens were there" in done.stdout, done.stdout[-4000:]
    assert done.stdout.count("NOT FOUND") == 2
