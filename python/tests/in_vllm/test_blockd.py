"""Tests the commands of docs/block-servers.md for three block servers and vLLM."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from .conftest import REQUIRED
from .test_serve import Served
from .test_serving import SERVER, env, serving  # noqa: F401 - a fixture

PAGE = Path(__file__).parents[3] / "docs" / "block-servers.md"
PROMPT = list(range(3, 131))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def blocks(address: str) -> int:
    """Returns the number of blocks of a block server."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        found = re.findall(r"^kvlane_blockd_blocks\{.*\} (\d+)", answer.read().decode(), re.MULTILINE)
    return sum(map(int, found))


def test_three_servers_and_vllm(env: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    """Runs the commands of the page, with other ports, model and bytes of memory. A second vLLM
    finds the blocks of the first in the servers."""
    if not os.environ.get("KVLANE_BINARY"):
        (pytest.fail if REQUIRED else pytest.skip)("KVLANE_BINARY does not name the binary")
    section = PAGE.read_text().partition("\n## Three servers and vLLM\n")[2].partition("\n## ")[0]
    servers = re.findall(r"^    kvlane (blockd .*)$", section, re.MULTILINE)
    (line,) = re.findall(r"^    (vllm serve .*?^    \}')$", section, re.MULTILINE | re.DOTALL)
    assert len(servers) == 3
    model = serving.make_model(tmp_path, "tiny")
    words = {"meta-llama/Llama-3.1-8B-Instruct": str(model), "17179869184": str(64 << 20)}
    words |= {f":{port}": f":{serving.free_port()}" for port in (7441, 7442, 7443)}
    for was, now in words.items():
        assert was in line
        line = line.replace(was, now)
        servers = [s.replace(was, now) for s in servers]
    metrics = [f"127.0.0.1:{serving.free_port()}" for _ in servers]
    running = []
    try:
        for server, address in zip(servers, metrics, strict=True):
            command = [sys.executable, "-m", "kvlane", *shlex.split(server), "--metrics-addr", address]
            running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True))
            out = running[-1].stdout
            assert out is not None
            assert out.readline().startswith(b"block server 127.0.0.1:")
        tokens = []
        for run in range(2):
            port, log = serving.free_port(), tmp_path / f"log{run}"
            extra = f"--port {port} --load-format dummy --served-model-name m --seed 0 {SERVER}"
            with log.open("wb") as to:
                process = subprocess.Popen(
                    ["bash", "-c", f"exec {line} {extra}"], stdout=to, stderr=to, env=env, start_new_session=True
                )
            running.append(process)
            serving.Server("page", tmp_path, process, port, log).wait(time.monotonic() + 420)
            client, deadline = Served(f"http://127.0.0.1:{port}"), time.monotonic() + 60
            tokens.append(client.complete(PROMPT))
            if run == 0:  # the last block of a prompt's tokens is computed again
                while sum(map(blocks, metrics)) < len(PROMPT) // 32:
                    assert time.monotonic() < deadline, log.read_text()[-4000:]
                    time.sleep(0.2)
                assert client.metric("vllm:external_prefix_cache_hits_total") == 0
            else:
                assert client.metric("vllm:external_prefix_cache_hits_total") >= 96, log.read_text()[-4000:]
                while client.metric("kvlane_store_hits_total", tier="remote") < 3:  # published in a step
                    assert time.monotonic() < deadline, log.read_text()[-4000:]
                    time.sleep(1)
                    client.complete(PROMPT)
            stop(process)
        assert tokens[0] == tokens[1]
    finally:
        for process in running:
            stop(process)
