"""Compare vLLM servers with and without kvlane, by `vllm bench serve`.

Starts one server for each side and drives the servers in turns. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import re
import shlex
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
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
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
    "mla": {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 16, "torch_dtype": "bfloat16",
    },
    "tiny": {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "torch_dtype": "float32",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """A server to compare: its arguments apart from the common ones, and its environment."""

    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def connector(name: str, extra: dict[str, Any], module: str = "kvlane.vllm", policy: str = "recompute") -> tuple[str, ...]:
    """Return the arguments of a server with a connector of this module."""
    return ("--kv-transfer-config", json.dumps({
        "kv_connector": name, "kv_connector_module_path": module, "kv_role": "kv_both",
        "kv_load_failure_policy": policy, "kv_connector_extra_config": extra,
    }))  # fmt: skip


def traced(side: Side, name: str, extra: dict[str, Any], folder: Path) -> Side:
    """Return a side whose connector records its calls in a file of the folder. See traced.py."""
    own = tuple(a for a in side.args if a == "--no-async-scheduling")
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH"))))
    file = str(folder.resolve() / f"trace-{name}.jsonl")
    return Side((*own, *connector(name, extra, "traced")), side.env | {"PYTHONPATH": path, "KVLANE_TRACE": file})


def sides(gib: float, store: dict[str, Any], more: dict[str, Any], trace: Path | None = None) -> dict[str, Side]:
    """Return all sides by name.

    Each side with a cache in host memory may use gib GiB per server. The keys of store and more are
    added to the configuration of kvlane's connectors. trace is a folder for the connectors' records
    of their calls.
    """
    extra = {"store": {"cache_bytes": int(gib * GIB), **store}, **more}
    by_nic = extra | {"store": extra["store"] | {"gdr": "require"}}
    in_step = extra | {"sync_load_budget_bytes": GIB}
    runner = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    out = {
        "none": Side(),
        "none-sync": Side(("--no-async-scheduling",), runner),
        "vllm": Side(("--kv-offloading-size", f"{gib:g}", "--kv-offloading-backend", "native")),
        "lmcache": Side(("--kv-offloading-size", f"{gib:g}", "--kv-offloading-backend", "lmcache")),
        "connector": Side(connector("Connector", extra)),
        "instep": Side(connector("Connector", in_step, policy="fail")),
        "layerwise": Side(("--no-async-scheduling", *connector("LayerwiseConnector", extra)), runner),
        "nic": Side(connector("Connector", by_nic)),
        "softnic": Side(connector("Connector", by_nic | {"rdma": {"provider": "soft"}})),
    }
    if trace is not None:
        out["vllm"] = traced(out["vllm"], "OffloadingConnector", {"cpu_bytes_to_use": int(gib * GIB)}, trace)
        out["connector"] = traced(out["connector"], "Connector", extra, trace)
        out["layerwise"] = traced(out["layerwise"], "LayerwiseConnector", extra, trace)
    return out


WORKLOADS = ("memory", "gpu", "online", "turns")
FILLED = ("memory", "gpu")  # run once before the rounds, to fill the caches with the prompts


def workload(a: argparse.Namespace, name: str, tokens: int, seed: int, scratch: Path, *, prefixes: int = 0) -> list[str]:
    """Return the arguments of `vllm bench serve` for a workload with prefixes of so many tokens.

    prefixes is their number, by default that of --prefixes.

    Filled workloads have the same prompts in all rounds, the others new ones for each seed.
    """
    if name in FILLED:
        prefixes = prefixes or (a.prefixes if name == "memory" else 1)
        return [
            "--seed", "1", "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", str(tokens),
            "--prefix-repetition-suffix-len", str(a.suffix), "--prefix-repetition-num-prefixes", str(prefixes),
            "--prefix-repetition-output-len", str(a.output), "--num-prompts", str(a.prompts),
        ]  # fmt: skip
    if name == "online":
        return [
            "--seed", str(seed), "--dataset-name", "random", "--random-prefix-len", str(a.online[0]),
            "--random-input-len", str(a.online[1]), "--random-output-len", str(a.online[2]), "--num-prompts", str(a.online[3]),
        ]  # fmt: skip
    path = scratch / "turns.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in turns(a, seed)))
    return [
        "--seed", str(seed), "--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", str(a.output),
        "--disable-shuffle", "--skip-chat-template", "--num-prompts", str(a.conversations * a.turns),
    ]  # fmt: skip


def turns(a: argparse.Namespace, seed: int) -> list[str]:
    """Return the prompts of conversations, turn by turn.

    Each prompt is the previous one of its conversation, followed by --turn-tokens new words.
    """
    rng, prompts = random.Random(seed), list[str]()
    texts = [list[str]() for _ in range(a.conversations)]
    for _ in range(a.turns):
        for text in texts:
            text.extend(f"t{rng.randrange(3, WORDS)}" for _ in range(a.turn_tokens))
            prompts.append(" ".join(text))
    return prompts


def make_model(folder: Path, shape: str) -> Path:
    """Write the configuration and a tokenizer of words for a model of this shape."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        "hidden_act": "silu", **SHAPES[shape],
    }))  # fmt: skip
    return folder


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """A process of `vllm serve`."""

    name: str
    model: Path
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> str:
        """Return the text at a path of the server."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def wait(self, deadline: float) -> None:
        """Wait until the server answers.

        Raises RuntimeError with the end of its log if it ends, or the deadline (time.monotonic)
        passes.
        """
        while True:
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"server {self.name} does not answer; its log ends:\n" + self.log.read_text()[-4000:])
            time.sleep(0.5)


def serve_command(a: argparse.Namespace, side: Side, model: Path, port: int) -> list[str]:
    """Return the command line of a side's server."""
    return [
        *VLLM, "serve", str(model), "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
        *([] if a.model else ["--load-format", "dummy"]), *shlex.split(a.server_args), *side.args,
    ]  # fmt: skip


@contextlib.contextmanager
def serving(a: argparse.Namespace, chosen: dict[str, Side], model: Path, logs: Path) -> Iterator[dict[str, Server]]:
    """Start a server for each side, all at once. Yield those that answer. End all servers."""
    servers, answering = dict[str, Server](), dict[str, Server]()
    try:
        for i, (name, side) in enumerate(chosen.items()):
            port, log = free_port(), logs / f"server-{name}.log"
            env = os.environ | {"VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(logs / f"cache-{name}")} | side.env
            if a.gpus_each:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(str(a.gpus_each * i + n) for n in range(a.gpus_each))
            command = serve_command(a, side, model, port)
            with log.open("wb") as f:
                process = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            servers[name] = Server(name, model, process, port, log)
        deadline = time.monotonic() + a.start_seconds
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGKILL)  # its children too
            server.process.wait()


COUNTERS = {
    "vllm:prefix_cache_queries_total": "queried",
    "vllm:prefix_cache_hits_total": "gpu_hits",
    "vllm:external_prefix_cache_hits_total": "external_hits",
}


def counters(metrics: str) -> dict[str, float]:
    """Return the tokens that were looked up, and those found on the GPU and by a connector."""
    found = dict.fromkeys(COUNTERS.values(), 0.0)
    for name, value in re.findall(r"^(vllm:\w+)(?:\{.*\})? (\S+)$", metrics, re.MULTILINE):
        if name in COUNTERS:
            found[COUNTERS[name]] += float(value)
    return found


# Each run is a process of its own, forked from one that has imported vLLM: the import takes longer than a run.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["vllm.benchmarks.serve"])


def bench_serve(args: Sequence[str], log: str) -> None:
    """Run `vllm bench serve` in this process, with its output in a file."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1"}
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    with open(log, "w") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    serve(parser.parse_args(args))


def drive(a: argparse.Namespace, server: Server, work: Sequence[str], concurrency: int, scratch: Path) -> dict[str, Any]:
    """Run `vllm bench serve` once. Return its figures and the hit rates."""
    out, log = scratch / "result.json", scratch / "bench.log"
    out.unlink(missing_ok=True)
    args = [
        "--backend", "vllm", "--base-url", f"http://127.0.0.1:{server.port}", "--endpoint", "/v1/completions", "--model", "model",
        "--tokenizer", str(server.model), "--ignore-eos", "--disable-tqdm", "--temperature", "0",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--max-concurrency", str(concurrency), "--save-result", "--save-detailed",
        "--result-dir", str(scratch), "--result-filename", out.name, *work,
    ]  # fmt: skip
    before = counters(server.get("/metrics"))
    client = FORKS.Process(target=bench_serve, args=(args, str(log)))
    client.start()
    client.join(a.run_seconds)
    if client.exitcode != 0 or not out.exists():
        client.kill()
        raise RuntimeError(f"vllm bench serve ended with {client.exitcode}:\n{log.read_text()[-4000:]}")
    after = counters(server.get("/metrics"))
    return figures(json.loads(out.read_text()), {k: after[k] - before[k] for k in after})


def figures(result: dict[str, Any], tokens: dict[str, float]) -> dict[str, Any]:
    """Return the reported figures of a result of `vllm bench serve`.

    Times are in milliseconds, but for the duration. Hit rates are shares of the tokens looked up.
    """
    kept = {f"{s}_{m}_ms": result[f"{s}_{m}_ms"] for m in ("ttft", "tpot", "itl") for s in ("mean", "median", "p99")}
    share = {k: tokens[k] / tokens["queried"] if tokens["queried"] else 0.0 for k in ("gpu_hits", "external_hits")}
    return kept | {
        "requests": result["completed"], "failed": result.get("failed", 0), "seconds": result["duration"],
        "tokens_per_s": result["total_token_throughput"], "ttfts_ms": [round(1000 * t, 3) for t in result.get("ttfts", [])],
        "gpu_hit_rate": share["gpu_hits"], "external_hit_rate": share["external_hits"],
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a line for each workload, concurrency and side.

    Values are medians over the rounds. The smallest and largest median TTFT follow in brackets.
    """
    names = ["workload", "at a time", "side", "TTFT median, ms", "mean", "p99", "TPOT mean", "median", "p99"]
    names += ["ITL mean", "median", "p99", "tokens/s", "hits GPU, other", "requests, failed"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for r in rows:
        name = f"{r['workload']}, {r['tokens']}" if r["workload"] in FILLED else r["workload"]
        groups.setdefault((name, r["concurrency"], r["side"]), []).append(r)
    for (name, concurrency, side), runs in groups.items():

        def middle(key: str, runs: list[dict[str, Any]] = runs) -> float:
            return float(statistics.median(r[key] for r in runs))

        ttft = [r["median_ttft_ms"] for r in runs]
        cells = [name, str(concurrency), side, f"{middle('median_ttft_ms'):.1f} ({min(ttft):.1f} to {max(ttft):.1f})"]
        cells += [f"{middle(f'{s}_ttft_ms'):.1f}" for s in ("mean", "p99")]
        cells += [f"{middle(f'{s}_{m}_ms'):.2f}" for m in ("tpot", "itl") for s in ("mean", "median", "p99")]
        cells += [
            f"{middle('tokens_per_s'):.0f}",
            f"{100 * middle('gpu_hit_rate'):.0f}%, {100 * middle('external_hit_rate'):.0f}%",
        ]
        cells += [f"{sum(r['requests'] for r in runs)}, {sum(r['failed'] for r in runs)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Run:
    """A run of `vllm bench serve` on one side.

    tokens is the length of a prefix, prefixes their number, 0 for that of --prefixes.
    """

    workload: str
    tokens: int
    concurrency: int
    round: int
    side: str
    prefixes: int = 0

    def __str__(self) -> str:
        """Return the run in words."""
        return f"{self.workload}, {self.tokens} tokens, {self.concurrency} at a time, round {self.round}, {self.side}"


def plan(a: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs in their order. The side changes fastest, the round slowest."""
    for n in range(1, a.rounds + 1):
        for work in a.workloads:
            only, _, rest = work.rpartition(":")
            name, tokens, concurrency, prefixes = (*rest.split("/"), "", "", "")[:4]
            for c in numbers(concurrency) if concurrency else a.concurrency:
                for side in [only] if only else a.sides:
                    yield Run(name, int(tokens or a.tokens), c, n, side, int(prefixes or 0))


def about() -> dict[str, Any]:
    """Return the machine, its GPUs and drivers, vLLM's version, the command and the time in UTC."""
    import vllm

    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    machine = {"system": platform.platform(), "cpus": os.cpu_count(), "gpus": gpus}
    return {"date": now, "machine": machine, "vllm": vllm.__version__, "command": shlex.join(sys.argv)}


def names(text: str) -> list[str]:
    """Split a list at its commas."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Split a list of integers at its commas."""
    return [int(n) for n in text.split(",")]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sides(1, {}, {})
    p.add_argument("--model", help="a model's folder or name; by default one of --shape with random weights is made")
    p.add_argument("--shape", choices=SHAPES, default="8b")
    p.add_argument("--sides", type=names, default="none,vllm,connector,layerwise", help=f"servers, of {','.join(known)}")
    p.add_argument(
        "--workloads",
        type=names,
        default="memory",
        help=f"[SIDE:]NAME[/TOKENS[/CONCURRENCY[/PREFIXES]]], a list; of {','.join(WORKLOADS)}",
    )
    p.add_argument("--concurrency", type=numbers, default="1", help="requests at a time of workloads that name none, a list")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tokens", type=int, default=8192, help="of a prefix, for workloads that name none")
    p.add_argument("--suffix", type=int, default=128, help="tokens after the prefix")
    p.add_argument("--prefixes", type=int, default=20, help="of the workload memory")
    p.add_argument("--prompts", type=int, default=40, help="of the workloads memory and gpu")
    p.add_argument("--output", type=int, default=8, help="tokens of an answer")
    p.add_argument("--online", type=numbers, default="819,205,128,20", help="prefix, input and output tokens, and prompts")
    p.add_argument("--conversations", type=int, default=8, help="of the workload turns")
    p.add_argument("--turns", type=int, default=6, help="of a conversation")
    p.add_argument("--turn-tokens", type=int, default=1024, help="new tokens of a turn")
    p.add_argument("--memory-gib", type=float, default=24, help="host memory for KV of each side")
    p.add_argument("--server-args", default="", help="arguments of every server, as in a shell")
    p.add_argument("--store", type=json.loads, default={}, help="JSON: more keys of the store's section")
    p.add_argument("--connector-config", type=json.loads, default={}, help="JSON: more keys of kv_connector_extra_config")
    p.add_argument("--gpus-each", type=int, default=0, help="GPUs of each server alone; by default all servers share all")
    p.add_argument("--trace", action="store_true", help="record the calls of connectors in --logs; traced.py reports them")
    p.add_argument("--start-seconds", type=float, default=300, help="time in which the servers must answer")
    p.add_argument("--run-seconds", type=float, default=300, help="limit of one run of `vllm bench serve`")
    p.add_argument("--budget", type=float, default=3600, help="no run begins after these seconds")
    p.add_argument("--json", type=Path, help="file for all figures")
    p.add_argument("--logs", type=Path, help="folder for the servers' logs and metrics, by default none is kept")
    a = p.parse_args(argv)
    for run in plan(a):
        if run.workload not in WORKLOADS:
            p.error(f"no workload {run.workload}: the workloads are {', '.join(WORKLOADS)}")
        if run.side not in known or run.side not in a.sides:
            p.error(f"no side {run.side}: the sides are {', '.join(known)}, and --sides must have it")
    return a


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    The exit status is 1 if a server did not start, or a request failed or was not run.
    """
    a, began = arguments(argv), time.monotonic()
    rows, skipped = list[dict[str, Any]](), list[str]()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-serving-")))
        logs = a.logs or scratch
        logs.mkdir(parents=True, exist_ok=True)
        (scratch / "model").mkdir()
        model = Path(a.model) if a.model else make_model(scratch / "model", a.shape)
        known = sides(a.memory_gib, a.store, a.connector_config, logs if a.trace else None)
        servers = stack.enter_context(serving(a, {name: known[name] for name in a.sides}, model, logs))

        def note(text: str) -> None:
            print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

        def run(r: Run) -> dict[str, Any]:
            folder = scratch / f"run-{r.side}"
            folder.mkdir(exist_ok=True)
            seed = 1000 * r.concurrency + r.round
            work = workload(a, r.workload, r.tokens, seed, folder, prefixes=r.prefixes)
            return asdict(r) | drive(a, servers[r.side], work, r.concurrency, folder)

        note(f"{len(servers)} of {len(a.sides)} servers answer")
        planned = [r for r in plan(a) if r.side in servers]
        filled = {(r.workload, r.tokens, r.prefixes, r.side) for r in planned if r.workload in FILLED}
        with ThreadPoolExecutor() as pool:
            for what in sorted({key[:3] for key in filled}):
                name, tokens, prefixes = what
                list(pool.map(run, [Run(name, tokens, 4, 0, side, prefixes) for side in servers if (*what, side) in filled]))
                note(f"every server has had the prompts of {name} with {tokens} tokens")
        for r in planned:
            if time.monotonic() - began > a.budget:
                skipped.append(str(r))
                continue
            rows.append(run(r))
            note(f"{r}: median TTFT {rows[-1]['median_ttft_ms']:.1f} ms")
            if a.json:
                a.json.write_text(json.dumps(about() | {"not_measured": skipped, "rows": rows}, indent=1) + "\n")
    print(table(rows))
    missing = [s for s in a.sides if s not in servers]
    if skipped or missing:
        print(f"not measured: {'; '.join(skipped + [f'side {s}' for s in missing])}")
    if a.json:
        a.json.write_text(json.dumps(about() | {"not_measured": skipped + missing, "rows": rows}, indent=1) + "\n")
    return int(bool(skipped or missing or any(r["failed"] for r in rows)))


if __name__ == "__main__":
    sys.exit(main())
