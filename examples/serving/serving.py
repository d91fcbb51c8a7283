"""Compare vLLM servers with and without kvlane, by `vllm bench serve`.

Starts one server for each side, on one GPU, and drives them in turns. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
GIB = 1 << 30
WORDS = 32000  # of the generated model's tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16",
    },
    "tiny": {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "torch_dtype": "float32",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """A server to compare: its arguments beside the common ones, and its environment."""

    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def kvlane(name: str, store: dict[str, Any], **more: Any) -> tuple[str, ...]:
    """Return the arguments that give a server the connector of this name."""
    return ("--kv-transfer-config", json.dumps({
        "kv_connector": name, "kv_connector_module_path": "kvlane.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"store": store} | more,
    }))  # fmt: skip


def sides(gib: float, extra: dict[str, Any]) -> dict[str, Side]:
    """Return all sides. Each that has a cache in host memory may pin gib GiB."""
    store = {"cache_bytes": int(gib * GIB)}
    layerwise = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    return {
        "none": Side(),
        "none-sync": Side(("--no-async-scheduling",), layerwise),
        "vllm": Side(("--kv-offloading-size", str(gib), "--kv-offloading-backend", "native")),
        "lmcache": Side(("--kv-offloading-size", str(gib), "--kv-offloading-backend", "lmcache")),
        "connector": Side(kvlane("Connector", store, **extra)),
        "layerwise": Side((*kvlane("LayerwiseConnector", store, **extra), "--no-async-scheduling"), layerwise),
        "nic": Side(kvlane("Connector", store | {"gdr": "require"}, rdma={"soft": True}, **extra)),
    }


@dataclass(frozen=True)
class Workload:
    """A run of `vllm bench serve`. With fill the caches have its prompts before the rounds."""

    args: tuple[str, ...]
    fill: bool = True


def workloads(a: argparse.Namespace, scratch: Path) -> dict[str, Workload]:
    """Return all workloads, with the sizes that the arguments give."""

    def repeated(prefixes: int) -> tuple[str, ...]:
        return (
            "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", str(a.tokens),
            "--prefix-repetition-suffix-len", str(a.suffix), "--prefix-repetition-num-prefixes", str(prefixes),
            "--prefix-repetition-output-len", str(a.output), "--num-prompts", str(a.prompts),
        )  # fmt: skip

    return {
        "memory": Workload(repeated(a.prefixes)),  # the prefixes do not fit into the GPU's KV cache
        "gpu": Workload(repeated(1)),  # the prefix stays in the GPU's KV cache
        "online": Workload((
            "--dataset-name", "random", "--random-prefix-len", "819", "--random-input-len", "205", "--random-output-len", "128",
            "--num-prompts", "20",
        ), fill=False),
        "turns": Workload((
            "--dataset-name", "custom", "--dataset-path", str(turns(scratch, a)), "--custom-output-len", str(a.output),
            "--disable-shuffle", "--skip-chat-template", "--num-prompts", str(a.conversations * a.turns),
        ), fill=False),
    }  # fmt: skip


def turns(scratch: Path, a: argparse.Namespace) -> Path:
    """Write the prompts of conversations: each is the one before it and new words."""
    rng, path = random.Random(1), scratch / "turns.jsonl"
    texts = [""] * a.conversations
    with path.open("w") as f:
        for _ in range(a.turns):
            for i in range(a.conversations):
                texts[i] += "".join(f" t{rng.randrange(3, WORDS)}" for _ in range(a.turn_tokens))
                f.write(json.dumps({"prompt": texts[i].strip()}) + "\n")
    return path


def make_model(folder: Path, shape: str) -> Path:
    """Write a Llama's configuration and a tokenizer of whole words, without weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )
    (folder / "config.json").write_text(json.dumps(SHAPES[shape] | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        "hidden_act": "silu",
    }))  # fmt: skip
    return folder


def free_port() -> int:
    """Return a TCP port that no process uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """A running vLLM server."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> str:
        """Return what the server answers to a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as r:
            return str(r.read().decode())

    def wait(self, deadline: float) -> None:
        """Wait until the server answers, or raise with the end of its log."""
        while True:
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"server {self.name} does not answer; its log ends:\n" + self.log.read_text()[-4000:])
            time.sleep(1)


@contextlib.contextmanager
def serving(a: argparse.Namespace, chosen: dict[str, Side], model: Path, logs: Path) -> Iterator[dict[str, Server]]:
    """Start one server for each side, all at once, and end them."""
    servers: dict[str, Server] = {}
    try:
        for name, side in chosen.items():
            port, log = free_port(), logs / f"server-{name}.log"
            command = [
                *VLLM, "serve", str(model), "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
                *([] if a.model else ["--load-format", "dummy"]), *a.server_args.split(), *side.args,
            ]  # fmt: skip
            env = os.environ | {"VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(logs / f"cache-{name}")} | side.env
            with log.open("wb") as f:
                process = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            servers[name] = Server(name, process, port, log)
        deadline, answering = time.monotonic() + a.start_seconds, {}
        for name, server in servers.items():
            try:
                server.wait(deadline)
                answering[name] = server
            except RuntimeError as e:
                print(f"left out: {e}", file=sys.stderr, flush=True)
        yield answering
        for name, server in answering.items():
            (logs / f"metrics-{name}.txt").write_text(server.get("/metrics"))
    finally:
        for server in servers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGTERM)
        for server in servers.values():
            try:
                server.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.process.pid, signal.SIGKILL)
                server.process.wait()


COUNTERS = {
    "vllm:prefix_cache_queries_total": "queried", "vllm:prefix_cache_hits_total": "gpu_hits",
    "vllm:external_prefix_cache_hits_total": "external_hits",
}  # fmt: skip


def counters(metrics: str) -> dict[str, float]:
    """Return the numbers of tokens looked up, found on the GPU, and found by a connector."""
    found = dict.fromkeys(COUNTERS.values(), 0.0)
    for name, value in re.findall(r"^(vllm:\w+)(?:\{[^}]*\})? (\S+)$", metrics, re.M):
        if name in COUNTERS:
            found[COUNTERS[name]] += float(value)
    return found


def figures(result: dict[str, Any], tokens: dict[str, float]) -> dict[str, Any]:
    """Return the reported part of a result of `vllm bench serve`, with the hit rates."""
    kept = {f"{s}_{m}_ms": result[f"{s}_{m}_ms"] for m in ("ttft", "tpot", "itl") for s in ("mean", "median", "p99")}
    return kept | {
        "requests": result["completed"], "failed": result.get("failed", 0), "seconds": result["duration"],
        "tokens_per_s": result["total_token_throughput"], "ttfts_ms": [round(1000 * t, 3) for t in result.get("ttfts", [])],
        "gpu_hit_rate": tokens["gpu_hits"] / tokens["queried"] if tokens["queried"] else 0.0,
        "external_hit_rate": tokens["external_hits"] / tokens["queried"] if tokens["queried"] else 0.0,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each workload, concurrency and side: medians over the rounds."""
    columns = [
        "workload",
        "at a time",
        "side",
        "TTFT median (spread), ms",
        "mean",
        "p99",
        "TPOT mean",
        "ITL p99",
        "tokens/s",
        "hits GPU",
        "other",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["workload"], r["concurrency"], r["side"]), []).append(r)
    for key, runs in groups.items():
        mid = {k: statistics.median(r[k] for r in runs) for k, v in runs[0].items() if isinstance(v, float)}
        ttft = [r["median_ttft_ms"] for r in runs]
        times = [f"{mid[k]:.1f}" for k in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms")]
        shares = [f"{mid[k]:.0%}" for k in ("gpu_hit_rate", "external_hit_rate")]
        spread = f"{mid['median_ttft_ms']:.1f} ({min(ttft):.1f} to {max(ttft):.1f})"
        cells = [*map(str, key), spread, *times, f"{mid['tokens_per_s']:.0f}", *shares]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="a model's folder or name; without it, one of --shape with random weights is made")
    p.add_argument("--shape", choices=SHAPES, default="8b")
    p.add_argument("--sides", default="none,vllm,connector,layerwise", help="servers that run at the same time, by commas")
    p.add_argument("--workloads", default="memory", help="memory, gpu, online, turns, by commas; SIDE:WORKLOAD for one side only")
    p.add_argument("--concurrency", default="1", help="requests at a time, by commas")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tokens", type=int, default=8192, help="of a prefix")
    p.add_argument("--suffix", type=int, default=128, help="tokens behind the prefix")
    p.add_argument("--prefixes", type=int, default=20, help="of the workload memory")
    p.add_argument("--prompts", type=int, default=40, help="of the workloads memory and gpu")
    p.add_argument("--output", type=int, default=8, help="tokens of an answer")
    p.add_argument("--conversations", type=int, default=8, help="of the workload turns")
    p.add_argument("--turns", type=int, default=6, help="of a conversation")
    p.add_argument("--turn-tokens", type=int, default=1024, help="new ones of a turn")
    p.add_argument("--memory-gib", type=float, default=24, help="host memory that each side may use for KV")
    p.add_argument("--server-args", default="", help="arguments of every server, separated by spaces")
    p.add_argument("--connector-config", type=json.loads, default={}, help="JSON: more keys of kvlane's connectors")
    p.add_argument("--start-seconds", type=float, default=300, help="time in which the servers must answer")
    p.add_argument("--run-seconds", type=float, default=300, help="limit of one run of `vllm bench serve`")
    p.add_argument("--budget", type=float, default=3600, help="no run begins after these seconds")
    p.add_argument("--json", type=Path, help="file for all figures")
    p.add_argument("--logs", type=Path, help="folder for the servers' logs (default: one that is removed)")
    return p.parse_args(argv)


def plan(text: str, chosen: Sequence[str]) -> dict[str, list[str]]:
    """Return the sides of each workload, from a list such as "memory,none:gpu"."""
    on: dict[str, list[str]] = {}
    for item in text.split(","):
        side, _, workload = item.rpartition(":")
        on.setdefault(workload, []).extend([side] if side else chosen)
    return on


class Comparison:
    """The rounds of all workloads on the running servers."""

    def __init__(self, a: argparse.Namespace, servers: dict[str, Server], model: Path, scratch: Path) -> None:
        self.a, self.servers, self.model, self.scratch = a, servers, model, scratch
        self.began = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.not_measured: list[str] = []

    def run(self, name: str, work: Workload, on: Sequence[str]) -> None:
        """Run one workload on these sides in turns."""
        if work.fill:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda side: self.drive(side, work, 4), on))
        for concurrency in map(int, self.a.concurrency.split(",")):
            for n, side in itertools.product(range(self.a.rounds), on):
                label = f"{name}, {concurrency} at a time, {side}, round {n + 1}"
                if time.monotonic() - self.began > self.a.budget:
                    self.not_measured.append(label)
                    continue
                row = {"side": side, "workload": name, "concurrency": concurrency, "round": n + 1} | self.drive(
                    side, work, concurrency
                )
                self.rows.append(row)
                print(f"{time.monotonic() - self.began:6.0f} s  {label}: TTFT {row['median_ttft_ms']:.1f} ms", flush=True)

    def drive(self, side: str, work: Workload, concurrency: int) -> dict[str, Any]:
        """Run `vllm bench serve` once; return its figures, with times in milliseconds."""
        server, scratch = self.servers[side], self.scratch / side
        scratch.mkdir(exist_ok=True)
        out = scratch / "result.json"
        out.unlink(missing_ok=True)
        command = [
            *VLLM, "bench", "serve", "--backend", "vllm", "--base-url", f"http://127.0.0.1:{server.port}",
            "--endpoint", "/v1/completions", "--model", "model", "--tokenizer", str(self.model), "--ignore-eos", "--seed", "1",
            "--disable-tqdm", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result",
            "--save-detailed",
            "--result-dir", str(scratch), "--result-filename", out.name, "--max-concurrency", str(concurrency), *work.args,
        ]  # fmt: skip
        before = counters(server.get("/metrics"))
        env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=self.a.run_seconds)
        if done.returncode != 0 or not out.exists():
            raise RuntimeError(f"vllm bench serve ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        after = counters(server.get("/metrics"))
        return figures(json.loads(out.read_text()), {k: after[k] - before[k] for k in after})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return 1 if a server did not start or a request failed."""
    a = arguments(argv)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs = a.logs or scratch
        logs.mkdir(parents=True, exist_ok=True)
        (scratch / "model").mkdir()
        model = Path(a.model) if a.model else make_model(scratch / "model", a.shape)
        known, works = sides(a.memory_gib, a.connector_config), workloads(a, scratch)
        chosen = {name: known[name] for name in a.sides.split(",")}
        servers = stack.enter_context(serving(a, chosen, model, logs))
        run = Comparison(a, servers, model, scratch)
        for name, on in plan(a.workloads, list(chosen)).items():
            run.run(name, works[name], [side for side in on if side in servers])
        print(table(run.rows))
        if run.not_measured:
            print("not measured within --budget: " + "; ".join(run.not_measured))
        if a.json:
            about = {
                "date": date.today().isoformat(),
                "machine": platform.platform(),
                "command": sys.argv,
                "not_measured": run.not_measured,
            }
            a.json.write_text(json.dumps(about | {"rows": run.rows}, indent=1) + "\n")
        return int(len(servers) < len(chosen) or any(r["failed"] for r in run.rows))


if __name__ == "__main__":
    sys.exit(main())
