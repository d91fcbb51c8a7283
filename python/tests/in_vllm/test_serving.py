"""Tests the example that compares vLLM servers, with a tiny model, and the README's command line
for a server."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import vllm

SCRIPT = Path(__file__).parents[3] / "examples" / "serving" / "serving.py"
sys.path.insert(0, str(SCRIPT.parent))
serving: Any = importlib.import_module("serving")
SERVER = "--max-model-len 512 --enforce-eager --block-size 32 --num-gpu-blocks-override 20 --dtype float32"
SMALL = [
    "--shape", "tiny", "--rounds", "1", "--tokens", "128", "--suffix", "16", "--prefixes", "6", "--prompts", "12",
    "--output", "4", "--online", "96,32,4,4", "--memory-gib", "0.0625",
]  # fmt: skip


@pytest.fixture
def env(server: Any, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a server on CPUs, which is forked from a process with vLLM."""
    # The CPU build's package has another name, which the command does not find.
    version = vllm.__version__.split("+")[0] + "+cpu"
    site = tmp_path / "site" / f"vllm-{version}.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "KVLANE_FORKS": server.env["KVLANE_FORKS"], "PYTHONPATH": f"{server.env['PYTHONPATH']}:{site.parent}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip


def test_servers_are_compared(env: dict[str, str], tmp_path: Path) -> None:
    out, logs = tmp_path / "out.json", tmp_path / "logs"
    command = [
        sys.executable, str(SCRIPT), *SMALL, "--sides", "softnic,nic", "--workloads", "softnic:memory,softnic:online",
        "--start-seconds", "900", "--server-args", SERVER, "--store", '{"admission": "always"}', "--json", str(out),
        "--logs", str(logs),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, env=env)
    report = json.loads(out.read_text()) if out.exists() else None
    assert report, done.stdout[-4000:] + done.stderr[-6000:]
    ran = {(r["workload"], r["side"]): r for r in report["rows"]}
    assert set(ran) == {("memory", "softnic"), ("online", "softnic")}
    for r in ran.values():
        assert r["failed"] == 0
        assert r["requests"] == len(r["ttfts_ms"]) == {"memory": 12, "online": 4}[r["workload"]]
        assert min(r["mean_ttft_ms"], r["mean_tpot_ms"], r["mean_itl_ms"], r["tokens_per_s"]) > 0
    assert ran["memory", "softnic"]["external_hit_rate"] > 0.3
    assert (logs / "metrics-softnic.txt").exists()
    # The configuration requires NICs, so the server must not start on a machine without them.
    if any(Path("/sys/class/infiniband").glob("*")):
        return
    assert done.returncode == 1
    assert report["not_measured"] == ["nic"]
    assert "left out: server nic does not answer" in done.stderr


def test_the_command_line_of_the_readme(env: dict[str, str], tmp_path: Path) -> None:
    """Runs the README's command line with only the model, the bytes of memory and the directory
    replaced, in an interpreter of its own. Afterwards blocks are in files."""
    env["PYTHONPATH"] = env["PYTHONPATH"].partition(":")[2]
    section = (SCRIPT.parents[2] / "README.md").read_text().partition("\n## In vLLM\n")[2]
    (line,) = re.findall(r"^    vllm serve .*?^    \}'$", section, re.MULTILINE | re.DOTALL)
    files, port = tmp_path / "files", serving.free_port()
    model = serving.make_model(tmp_path, "tiny")
    words = {"meta-llama/Llama-3.1-8B-Instruct": model, "17179869184": 64 << 20, "/var/cache/kvlane": files}
    for was, now in words.items():
        assert was in line
        line = line.replace(was, str(now))
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = ["bash", "-c", f"exec {line.strip()} --port {port} --load-format dummy --served-model-name m {SERVER}"]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
    server = serving.Server("readme", tmp_path, process, port, log)
    try:
        server.wait(time.monotonic() + 420)
        body = {"model": "m", "prompt": list(range(3, 131)), "max_tokens": 2, "return_token_ids": True, "ignore_eos": True}
        for _ in range(2):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert len(json.loads(answer.read())["choices"][0]["token_ids"]) == 2
        deadline = time.monotonic() + 60
        while not any(p.is_file() and p.parent.name != "tmp" and p.parents[2] == files for p in files.rglob("*")):
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
