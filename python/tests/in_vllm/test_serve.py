"""Tests the answers and metrics of `vllm serve` with kvlane under many concurrent requests."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import LIMIT

REQUESTS = 50
TRANSFER = {
    "kv_connector": "Connector", "kv_connector_module_path": "kvlane.vllm", "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"store": {"cache_bytes": 64 << 20, "admission": "always"}, "log_seconds": 0},
}  # fmt: skip


class Served:
    """A client of a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=LIMIT) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def complete(self, prompt: list[int]) -> list[int]:
        """Returns the tokens that follow a prompt."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        (choice,) = self.post("/v1/completions", body)["choices"]
        tokens: list[int] = choice["token_ids"]
        return tokens

    def complete_all(self, prompts: list[list[int]]) -> list[list[int]]:
        """Completes all prompts concurrently."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self.complete, prompts))

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's values with these labels."""
        families = text_string_to_metric_families(self.get("/metrics"))
        samples = (s for family in families for s in family.samples if s.name == name)
        return float(sum(s.value for s in samples if labels.items() <= s.labels.items()))


@contextlib.contextmanager
def served(model: str, folder: Path, forks: dict[str, str]) -> Iterator[Served]:
    """Runs `vllm serve` for a model, with a tokenizer of one word per token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    own = folder / "model"
    shutil.copytree(model, own)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2").save_pretrained(own)
    import vllm

    # The CPU build's package has another name, which the command does not find.
    version = vllm.__version__.split("+")[0] + "+cpu"
    site = folder / "site" / f"vllm-{version}.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | forks | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "PYTHONPATH": f"{forks['PYTHONPATH']}:{site.parent}",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(own), "--served-model-name", "m", "--port", str(port),
        "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "16", "--block-size", "32",
        "--num-gpu-blocks-override", "80", "--enforce-eager", "--kv-transfer-config", json.dumps(TRANSFER),
    ]  # fmt: skip
    log = folder / "serve.log"
    with log.open("w") as out, subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True) as process:
        try:
            server, deadline = Served(f"http://127.0.0.1:{port}"), time.monotonic() + LIMIT
            while True:
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    server.get("/health")
                    break
                assert process.poll() is None, log.read_text()[-6000:]
                assert time.monotonic() < deadline, log.read_text()[-6000:]
                time.sleep(0.5)
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def forks(server: Any) -> dict[str, str]:
    """Returns the variables with which programs are forked from a process with vLLM."""
    env: dict[str, str] = server.env
    return env


def test_many_requests_at_a_time(forks: dict[str, str], model: Any, tmp_path: Path) -> None:
    """vLLM's pages hold a third of the prompts. After a reset of vLLM's own cache their prefixes
    are loaded from memory."""
    rng = random.Random(1)
    prefixes = [[rng.randrange(3, 512) for _ in range(96)] for _ in range(10)]
    prompts = [prefixes[i % 10] + [rng.randrange(3, 512) for _ in range(rng.choice((3, 20, 60)))] for i in range(REQUESTS)]
    with served(model("llama"), tmp_path, forks) as server:
        computed = server.complete_all(prompts)
        before = server.metric("kvlane_store_hits_total", tier="cache")
        server.post("/reset_prefix_cache")
        assert server.complete_all(prompts) == computed
        loaded = server.metric("kvlane_store_hits_total", tier="cache") - before
        deadline = time.monotonic() + 30
        while loaded < 3 * len(prefixes):  # a worker publishes its counters every 5 seconds at most, during a step
            assert time.monotonic() < deadline, f"{loaded} blocks were loaded"
            time.sleep(1)
            server.complete(prompts[0])
            loaded = server.metric("kvlane_store_hits_total", tier="cache") - before
        assert server.metric("vllm:external_prefix_cache_hits_total") >= 96 * len(prefixes)
        assert server.metric("vllm:request_success_total") >= 2 * REQUESTS
        assert server.metric("kvlane_store_load_errors_total") == 0
        assert server.metric("kvlane_manager_stored_total", rank="scheduler") >= 3 * len(prefixes)
        assert server.metric("vllm:num_requests_running") == 0
    assert "Traceback" not in (tmp_path / "serve.log").read_text()
