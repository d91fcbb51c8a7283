"""Time to first token in vLLM: of a prompt computed in full, and with its prefix loaded.

    # a tiny model, on the device that vLLM finds
    python ttft_vllm.py
    # the shape of Llama 3.1 8B with random weights in bfloat16, on a GPU
    python ttft_vllm.py --preset 8b --json ttft-vllm.json

In the reference, vLLM keeps the prefix on the device. Token and logprobs of every other hit must
equal those of the reference, bit for bit. The other hits are in pinned memory, of kvlane's
connectors and of vLLM's own offloading, and in kvlane's files, from which a new engine loads.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the core runs in this process
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # required by LayerwiseConnector
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch
from transformers import LlamaConfig
from ttft import PRESETS, Row, files_of, machine, out_of_page_cache, row
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.platforms import current_platform

REST = 8  # tokens of a prompt after its prefix, less than a block
LENGTHS = {"tiny": "256,512", "8b": "2048,8192,32768"}
KVLANE = {"kv_connector_module_path": "kvlane.vllm", "kv_load_failure_policy": "recompute"}


@register_model_loader("random_normal")
class RandomLoader(BaseModelLoader):  # type: ignore[misc]
    """Random weights, as before training. With vLLM's dummy weights, KV hardly affects outputs."""

    def download_model(self, model_config: Any) -> None:
        """Do nothing."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Set the parameters, to the same values in every process."""
        for i, (_, p) in enumerate(sorted(model.named_parameters())):
            if p.dim() == 1:
                p.data.fill_(1)
            else:
                p.data.normal_(0, p.shape[-1] ** -0.5, generator=torch.Generator(p.device).manual_seed(i))


class Engine:
    """vLLM with one connector or none, and its time to the first token."""

    def __init__(self, args: argparse.Namespace, connector: dict[str, Any] | None) -> None:
        self.args = args
        longest = max(args.lengths) + REST
        more: dict[str, Any] = dict(args.engine)
        if connector:
            more["kv_transfer_config"] = KVTransferConfig(kv_role="kv_both", **connector)
        if not current_platform.is_cpu():
            more.setdefault("kv_cache_memory_bytes", 5 * max([1, *args.together]) * (longest + 1024) * token_bytes(args) // 4)
        self.llm = LLM(
            args.model, load_format="random_normal", skip_tokenizer_init=True, dtype=dtype(), block_size=args.block_tokens,
            max_model_len=longest + 64, max_num_seqs=max([4, *args.together]), max_num_batched_tokens=min(8192, longest + 64),
            enforce_eager=True, async_scheduling=False, seed=0, **more,
        )  # fmt: skip
        # Kernels are compiled and loaded at their first use.
        first = self.prompt(min(args.lengths), -1)
        for reset in (False, True, True):
            self.ask(first)
            if reset:
                self.store_all()
                self.reset()

    def prompt(self, tokens: int, i: int) -> list[int]:
        """Return the i-th prompt with a prefix of that length.

        All prompts end alike, so that outputs differ only by the KV of the prefix.
        """
        vocabulary = PRESETS[self.args.preset]["vocab_size"]
        return [*random.Random(f"{tokens} {i}").choices(range(3, vocabulary), k=tokens), *range(3, 3 + REST)]

    def ask(self, *prompts: list[int]) -> list[dict[str, Any]]:
        """Send the prompts together.

        Return for each the seconds until all had their first token, the likeliest tokens, and how
        many tokens were cached.
        """
        how = SamplingParams(max_tokens=1, temperature=0, detokenize=False, logprobs=8)
        begin = time.perf_counter()
        outs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], how, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return [
            {"seconds": seconds, "cached": out.num_cached_tokens, "likely": {str(t): p.logprob for t, p in likely.items()}}
            for out in outs
            for likely in out.outputs[0].logprobs
        ]

    def store_all(self, directory: str | None = None, timeout: float = 300) -> None:
        """Run steps of the engine until all computed blocks are stored and no files are added."""
        end, seen, since = time.monotonic() + timeout, -1, time.monotonic()
        for i in range(10):
            self.ask(random.Random(f"settle {i} {end}").choices(range(3, 500), k=REST))
        while directory and time.monotonic() < since + 1:
            if time.monotonic() > end:
                raise SystemExit("blocks were not written to files in time")
            if (now := sum(p.stat().st_size for p in files_of(directory))) != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.1)

    def reset(self, timeout: float = 30) -> None:
        """Reset the KV that the engine keeps on the device."""
        end = time.monotonic() + timeout
        while not self.llm.reset_prefix_cache():
            if time.monotonic() > end:
                raise SystemExit("vLLM's prefix cache is still in use")
            self.store_all()


def dtype() -> str:
    """Return the type of weights and KV."""
    return "float32" if current_platform.is_cpu() else "bfloat16"


def token_bytes(args: argparse.Namespace) -> int:
    """Return the bytes of the KV of one token."""
    shape = PRESETS[args.preset]
    head: int = shape["hidden_size"] // shape["num_attention_heads"]
    heads: int = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"]
    return heads * head * (4 if dtype() == "float32" else 2)


Runs = list[dict[str, Any]]  # the request, the time and the output of each run


def each(engine: Engine, source: str, before: Callable[[], None] = lambda: None, repeat: int = 1) -> Runs:
    """Run every prompt repeat times."""
    return [
        run
        for tokens in engine.args.lengths
        for i in range(engine.args.prompts)
        for _ in range(repeat)
        for run in one(engine, source, tokens, i, before)
    ]


def one(engine: Engine, source: str, tokens: int, i: int, before: Callable[[], None] = lambda: None) -> Runs:
    """Run one prompt once."""
    before()
    return [{"source": source, "tokens": tokens, "i": i, **out} for out in engine.ask(engine.prompt(tokens, i))]


def together(engine: Engine, source: str) -> Runs:
    """Run so many prompts of each length at a time as --together says, each time into a reset engine."""
    runs = Runs()
    for n in engine.args.together:
        for tokens in engine.args.lengths:
            for first in range(0, engine.args.prompts, n):
                engine.reset()
                some = range(first, min(first + n, engine.args.prompts))
                outs = engine.ask(*(engine.prompt(tokens, i) for i in some))
                runs += [
                    {"source": f"{source}, {n} at a time", "tokens": tokens, "i": i, **o} for i, o in zip(some, outs, strict=True)
                ]
    return runs


def of_vllm(args: argparse.Namespace) -> Runs:
    """Run without a connector: compute each prompt, then run it with its prefix on the device."""
    engine, runs = Engine(args, None), Runs()
    for tokens in args.lengths:
        for i in range(args.prompts):
            for source in ["computed in full"] + args.repeat * ["kept on the device"]:
                runs += one(engine, source, tokens, i)
            engine.reset()
    return runs


def in_memory(args: argparse.Namespace, name: str, connector: dict[str, Any], directory: str | None = None) -> Runs:
    """Compute and store every prompt, then load each from pinned memory into a reset engine."""
    engine = Engine(args, connector)
    runs = each(engine, f"{name}: computed and stored", engine.reset)
    engine.store_all(directory)
    source = f"{name}: in memory"
    return runs + each(engine, source, engine.reset, args.repeat) + together(engine, source)


def restarted(args: argparse.Namespace, source: str, connector: dict[str, Any]) -> Runs:
    """Run the prompts with an engine that has not computed them, from files."""
    return each(Engine(args, connector), source)


def kvlane(args: argparse.Namespace, name: str, directory: str | None) -> dict[str, Any]:
    """Return the configuration of a kvlane connector, with memory for all prompts and more."""
    store: dict[str, Any] = {"cache_bytes": pool_bytes(args), "admission": "always"}
    if directory:
        store["dirs"] = [directory]
    return {"kv_connector": name, **KVLANE, "kv_connector_extra_config": {"weights": "random", "store": store}}


def pool_bytes(args: argparse.Namespace) -> int:
    """Return the bytes of pinned memory: one and a half times those of all prompts, and more.

    A request pins at most five eighths of the memory.
    """
    tokens: int = args.prompts * sum(args.lengths) + min(args.lengths)
    return 3 * tokens * token_bytes(args) // 2 + (256 << 20)


def plans(args: argparse.Namespace, directory: str) -> dict[str, tuple[Callable[[], None], Callable[..., Runs], tuple[Any, ...]]]:
    """Return for each run a preparation for this process, and a function and its arguments for a new one."""
    files, whole = os.path.join(directory, "blocks"), functools.partial(kvlane, args, "Connector")
    own = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": pool_bytes(args)}}

    def nothing() -> None:
        os.makedirs(files, exist_ok=True)

    def read() -> None:
        for path in files_of(files):
            path.read_bytes()

    return {
        "vllm": (nothing, of_vllm, ()),
        "own": (nothing, in_memory, ("vLLM's offloading", own)),
        "layerwise": (nothing, in_memory, ("kvlane, layer by layer", kvlane(args, "LayerwiseConnector", None))),
        "memory": (nothing, in_memory, ("kvlane", whole(files), files)),
        "disk": (lambda: out_of_page_cache(files), restarted, ("kvlane: after a restart, on disk", whole(files))),
        "files": (read, restarted, ("kvlane: after a restart, page cache", whole(files))),
    }


def child(out: str, work: Callable[..., Runs], args: argparse.Namespace, rest: tuple[Any, ...]) -> None:
    """Run work in a child process, and write its results to a file."""
    try:
        Path(out).write_text(json.dumps(work(args, *rest)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # vLLM's shutdown is not measured


def table(args: argparse.Namespace, runs: Runs) -> tuple[list[Row], list[str]]:
    """Print the rows. Return them, and the errors."""
    reference = {(r["tokens"], r["i"]): r for r in reversed(runs) if r["source"] == "kept on the device"}
    rows, wrong = list[Row](), list[str]()
    if len({str(r["likely"]) for r in reference.values()}) < len(reference):
        wrong.append("what comes out hardly depends on the prefix, so comparing it shows nothing")
    print(f"{'tokens':>7}  {'prefix':<38} {'median ms':>10} {'p99 ms':>10} {'GB/s':>8}")
    for tokens in args.lengths:
        kept = 0.0
        for source in dict.fromkeys(r["source"] for r in runs):
            of = [r for r in runs if r["source"] == source and r["tokens"] == tokens]
            loaded = "computed" not in source
            same = all(r["likely"] == reference[r["tokens"], r["i"]]["likely"] for r in of) if loaded and reference else None
            line = row(tokens, source, [r["seconds"] for r in of], identical=same, kv_bytes=loaded * tokens * token_bytes(args))
            rows.append(line)
            kept = line.median if source == "kept on the device" else kept
            found = sorted({r["cached"] for r in of})
            if found != [tokens * loaded]:
                wrong.append(f"{tokens} tokens, {source}: {found} tokens were there")
            elif same is False:
                wrong.append(f"{tokens} tokens, {source}: NOT IDENTICAL")
            # The duration of the load is the time beyond that with KV kept on the device.
            rate = f"{line.kv_bytes / (line.median - kept) / 1e9:8.2f}" if loaded and kept and line.median > kept else " " * 8
            verdict = {True: "identical", False: "NOT IDENTICAL", None: ""}[same] if found == [tokens * loaded] else "NOT FOUND"
            print(f"{tokens:>7}  {source:<38} {1e3 * line.median:>10.2f} {1e3 * line.p99:>10.2f} {rate}  {verdict}".rstrip())
    return rows, wrong


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the model's shape")
    parser.add_argument("--tokens", help="lengths of prefixes, separated by commas, whole blocks each; by default the preset's")
    parser.add_argument("--prompts", type=int, default=2, help="different prompts of each length")
    parser.add_argument("--repeat", type=int, default=3, help="hits of each, where it is there again: not after a restart")
    parser.add_argument(
        "--together",
        type=lambda s: [int(n) for n in s.split(",")],
        default=[],
        help="also load from memory so many prompts at a time, a list; outputs are then equal with VLLM_BATCH_INVARIANT=1 only",
    )
    parser.add_argument("--block-tokens", type=int, default=16 if not current_platform.is_cpu() else 32)
    parser.add_argument("--engines", default="vllm,own,layerwise,memory,disk,files", help="which to run, in this order")
    parser.add_argument("--engine", type=json.loads, default={}, help="further arguments of vllm.LLM, in JSON")
    parser.add_argument("--dir", help="where to make a directory for the files, on the disk that is meant; else in TMPDIR")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that each engine has")
    parser.add_argument("--budget", type=float, default=3600, help="after how many seconds no engine runs any more")
    parser.add_argument("--json", help="file for all figures")
    args = parser.parse_args()
    args.lengths = [int(n) for n in (args.tokens or LENGTHS[args.preset]).split(",")]
    if any(n % args.block_tokens for n in args.lengths):
        parser.error("--tokens have to be whole blocks")
    return args


def main() -> int:
    """Print the table. The exit status is 1 if a run failed, missed its prefix or was not equal."""
    args = arguments()
    directory = tempfile.mkdtemp(prefix="kvlane-ttft-", dir=args.dir)
    try:
        args.model = os.path.join(directory, "model")
        LlamaConfig(**PRESETS[args.preset], architectures=["LlamaForCausalLM"], bos_token_id=1, eos_token_id=2).save_pretrained(
            args.model
        )
        return measure(args, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(args: argparse.Namespace, directory: str) -> int:
    """Run the engines one after another, each in a process of its own."""
    began = datetime.now(timezone.utc)
    # A fork has imported vLLM already. It is not possible after this process has used a GPU.
    processes: Any = multiprocessing.get_context("spawn" if torch.cuda.is_initialized() else "fork")
    runs, wrong, all_plans, end = Runs(), list[str](), plans(args, directory), time.monotonic() + args.budget
    for name in args.engines.split(","):
        if name == "own" and current_platform.is_cpu():
            print("vLLM's own offloading is not for CPUs", flush=True)
            continue
        if time.monotonic() > end:
            wrong.append(f"{name}: the budget was used up")
            continue
        before, work, rest = all_plans[name]
        before()
        out = os.path.join(directory, f"{name}.json")
        process = processes.Process(target=child, args=(out, work, args, rest))
        process.start()
        process.join(min(args.timeout, max(0, end - time.monotonic())))
        if process.exitcode != 0:
            process.kill()
            wrong.append(f"{name}: " + ("took too long" if process.exitcode is None else f"ended with {process.exitcode}"))
            print(wrong[-1], flush=True)
            continue
        runs += json.loads(Path(out).read_text())
        print(f"{name}: done after {args.budget - end + time.monotonic():.0f} s", flush=True)
    place = "CPU" if current_platform.is_cpu() else current_platform.get_device_name()
    import vllm

    print(f"{place}, torch {torch.__version__}, vLLM {vllm.__version__}")
    print(f"preset {args.preset}, {token_bytes(args)} bytes of KV a token")
    rows, found = table(args, runs)
    wrong += found
    print("\n".join(wrong) or "token and logprobs of every hit are those of KV that had stayed on the device, bit by bit")
    if args.json:
        Path(args.json).write_text(json.dumps({
            "device": place, "machine": machine(place, began, None if current_platform.is_cpu() else 0),
            "torch": str(torch.__version__), "vllm": vllm.__version__, "preset": args.preset,
            "token_bytes": token_bytes(args), "block_tokens": args.block_tokens, "engine": args.engine,
            "rows": [asdict(r) for r in rows], "runs": runs, "wrong": wrong,
        }, indent=1))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
