"""Tests the containers of deploy/kubernetes: block servers with TLS and tokens, and vLLM as their
client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import REQUIRED
from .test_blockd import PROMPT, blocks, stop
from .test_serve import Served
from .test_serving import SERVER, env, serving  # noqa: F401 - a fixture

MANIFESTS = Path(__file__).parents[3] / "deploy" / "kubernetes" / "vllm-and-block-servers.yaml"
TOKEN = "0123456789abcdef"


def secret(folder: Path) -> None:
    """Writes the files of the chart's secret, with a certificate for loopback."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(folder / "tls.key")]
    name = ["-subj", "/CN=blocks", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(folder / "tls.crt")]
    subprocess.run(["openssl", "req", "-x509", "-days", "1", *key, *name], check=True, capture_output=True)
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    (folder / "token").write_text(TOKEN)
    (folder / "tokens").write_text(f"engines {TOKEN}\n")


def probed(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Waits until a probe's request succeeds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < deadline, log.read_text()[-6000:]
            time.sleep(0.3)
        else:
            return


def test_containers_of_the_manifests(env: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    """Runs the commands of the containers with other ports, folders, model and bytes of memory. The
    probes are answered, and a prompt's blocks are in the server."""
    if not os.environ.get("KVLANE_BINARY") or not shutil.which("openssl"):
        (pytest.fail if REQUIRED else pytest.skip)("KVLANE_BINARY does not name the binary, or there is no openssl")
    pods: dict[str, Any] = {}
    for document in yaml.safe_load_all(MANIFESTS.read_text()):
        if document["kind"] in ("StatefulSet", "Deployment"):
            pods[document["metadata"]["name"]] = document["spec"]["template"]["spec"]["containers"][0]
    secret(tmp_path)
    port, metrics, http = (serving.free_port() for _ in range(3))
    words = {
        "0.0.0.0:7440": f"127.0.0.1:{port}", "0.0.0.0:9440": f"127.0.0.1:{metrics}", "=8GiB": "=64MiB",
        "/etc/kvlane": str(tmp_path), "17179869184": str(64 << 20), "meta-llama/Llama-3.1-8B-Instruct": "",
        "--port=8000": f"--port={http}", "--host=0.0.0.0": "--host=127.0.0.1",
    }  # fmt: skip
    words["meta-llama/Llama-3.1-8B-Instruct"] = str(serving.make_model(tmp_path, "tiny"))

    def start(name: str, *extra: str) -> tuple[subprocess.Popen[bytes], Path]:
        container, log = pods[name], tmp_path / name
        line = [*container["command"], *container["args"], *extra]
        for was, now in words.items():
            line = [part.replace(was, now) for part in line]
        line = [re.sub(r'"remote":"[^"]*"', f'"remote":"127.0.0.1:{port}"', part) for part in line]
        if line[0] == "kvlane":
            line[0] = os.environ["KVLANE_BINARY"]
        with log.open("wb") as out:
            return subprocess.Popen(line, stdout=out, stderr=out, env=env, start_new_session=True), log

    running = []
    try:
        process, log = start("kvlane-blocks")
        running.append(process)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            probed(f"http://127.0.0.1:{metrics}{pods['kvlane-blocks'][probe]['httpGet']['path']}", process, log, 30)
        process, log = start("kvlane-vllm", "--load-format", "dummy", "--served-model-name", "m", *SERVER.split())
        running.append(process)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            probed(f"http://127.0.0.1:{http}{pods['kvlane-vllm'][probe]['httpGet']['path']}", process, log, 420)
        Served(f"http://127.0.0.1:{http}").complete(PROMPT)
        deadline = time.monotonic() + 60
        while blocks(f"127.0.0.1:{metrics}") < len(PROMPT) // 32:
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
    finally:
        for process in running:
            stop(process)
