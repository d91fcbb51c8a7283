"""Time to first token on several GPUs, for requests that have most of their prompt in common.

    # on two GPUs
    torchrun --nproc-per-node 2 tp.py --preset 8b
    # a tiny model, two processes on the CPU
    torchrun --nproc-per-node 2 tp.py

The script implements tensor parallelism itself. Each process has a part of the heads and of the
feed-forward layers, and two sums per layer combine the results. Each process has a store for the KV
of its heads. The prefix of a request is the longest one that all stores have.

Requests run one after another. Each has 1,024 tokens, of which 80 % are one of a few prefixes, and
generates 32 tokens. Without the store, the whole prompt is computed. The loaded KV must equal that
of a prefix kept on the GPUs, bit for bit. Tokens are compared too, and so are those of two runs
from the kept prefix: sums over GPUs may differ from run to run.

--requests is the number of requests. None begins later than --budget seconds after the start.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig
from ttft import PRESETS

from kvlane.transformers import CACHE_OPTION, KVLaneCache

STARTED = time.perf_counter()
KINDS = ("without", "with kvlane")
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


class Summed(nn.Module):  # type: ignore[misc]
    """A linear layer whose inputs are split among the processes. Sums the partial results."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Any) -> Any:
        """Return the result, the same in every process."""
        out = nn.functional.linear(x, self.weight)
        dist.all_reduce(out)
        return out


def split(layer: Any, number: int, count: int) -> None:
    """Reduce a decoder layer's linear layers, which have no biases, to one process's part."""
    for name in COLUMNS:
        linear = layer.get_submodule(name)
        linear.weight = nn.Parameter(linear.weight.chunk(count, 0)[number].clone(), requires_grad=False)
    for name in ROWS:
        above, _, last = name.rpartition(".")
        weight = layer.get_submodule(name).weight.detach().chunk(count, 1)[number].clone()
        setattr(layer.get_submodule(above), last, Summed(weight))


class Rank:
    """The part of the model in this process, and its store."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.number, self.count = args, dist.get_rank(), dist.get_world_size()
        cuda = args.device == "cuda"
        self.device = torch.device("cuda", self.number) if cuda else torch.device("cpu")
        torch.manual_seed(0)  # all processes draw the same weights, and keep their part
        config = LlamaConfig(**PRESETS[args.preset], bos_token_id=1, eos_token_id=None, pad_token_id=None)
        with self.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if cuda else torch.float32).eval()
        for layer in self.model.model.layers:
            split(layer, self.number, self.count)
        self.heads = config.num_key_value_heads // self.count
        head = config.hidden_size // config.num_attention_heads
        token = 2 * config.num_hidden_layers * self.heads * head * self.model.dtype.itemsize
        self.cache = KVLaneCache(
            self.model,
            {"cache_bytes": 2 * args.prefixes * args.tokens * token + (64 << 20)},
            block_tokens=args.block_tokens,
            weights=f"seed 0, part {self.number} of {self.count}",
        )

    def in_time(self) -> bool:
        """Return whether no process has exceeded its time budget."""
        return bool(self.common(time.perf_counter() - STARTED < self.args.budget))

    def common(self, n: int) -> int:
        """Return the minimum of n over all processes."""
        t = torch.tensor([n], device=self.device)
        dist.all_reduce(t, op=dist.ReduceOp.MIN)
        return int(t)

    def load(self, ids: Any) -> Any:
        """Return the longest prefix that all processes have."""
        past = self.cache.load(ids)
        found = int(past.get_seq_length())
        if (n := self.common(found)) < found:
            past = DynamicCache([(x.keys[:, :, :n], x.values[:, :, :n]) for x in past.layers]) if n else DynamicCache()
        return past

    def generate(self, ids: Any, past: Any) -> tuple[list[float], list[int]]:
        """Generate tokens after ids greedily. Return their times, and the tokens. Changes past."""
        stamps, out = [], list[int]()
        rest = ids[:, int(past.get_seq_length()) :].to(self.device)
        with torch.no_grad():
            for _ in range(self.args.generate):
                logits = self.model(rest, **{CACHE_OPTION: past}, use_cache=True, logits_to_keep=1).logits[:, -1]
                rest = logits.argmax(-1, keepdim=True)
                out.append(int(rest))
                stamps.append(time.perf_counter())
        return stamps, out


def prompts(args: argparse.Namespace) -> list[Any]:
    """Return prompts of [1, tokens]: one of a few prefixes of whole blocks, and a random rest."""
    shared = int(args.reuse * args.tokens) // args.block_tokens * args.block_tokens
    g = torch.Generator().manual_seed(1)
    heads = [torch.randint(3, 1000, (1, shared), generator=g) for _ in range(args.prefixes)]
    tails = [torch.randint(3, 1000, (1, args.tokens - shared), generator=g) for _ in range(args.requests)]
    return [torch.cat((heads[i % args.prefixes], tail), 1) for i, tail in enumerate(tails)]


def summary(name: str, firsts: list[float], gaps: list[list[float]]) -> dict[str, Any]:
    """Return the milliseconds to the first token, per further token, and between two tokens."""
    each = sorted(g for gap in gaps for g in gap)

    def ms(values: list[float], share: float) -> float:
        ordered = sorted(values)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "requests": len(firsts), "kind": name, "ttft_p50_ms": ms(firsts, 0.5), "ttft_p99_ms": ms(firsts, 0.99),
        "tpot_p50_ms": 1e3 * statistics.median(statistics.mean(g) for g in gaps),
        "itl_p50_ms": ms(each, 0.5), "itl_p99_ms": ms(each, 0.99),
    }  # fmt: skip


def measure(rank: Rank, args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[int]]:
    """Run each request without and with the store. Return summaries, and the first one's tokens.

    Exits if loaded KV differs from that of the prefixes kept on the device.
    """
    every = prompts(args)
    shared = int(args.reuse * args.tokens) // args.block_tokens * args.block_tokens
    kept = []
    for ids in every[: args.prefixes]:  # computed and stored once, as by earlier requests
        past = rank.load(ids)  # a miss, after which kvlane measures computing
        rank.generate(ids, past)
        rank.cache.save(ids[:, :shared], DynamicCache([(x.keys[:, :, :shared], x.values[:, :, :shared]) for x in past.layers]))
        kept.append([(x.keys[:, :, :shared].clone(), x.values[:, :, :shared].clone()) for x in past.layers])
    firsts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    gaps: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    wrong = loaded = other = twice = 0
    first: list[int] = []
    done = 0
    for i, ids in enumerate(every):
        if not rank.in_time():
            break
        done += 1
        _, want = rank.generate(ids, DynamicCache(kept[i % args.prefixes]))
        first = first or want
        twice += rank.generate(ids, DynamicCache(kept[i % args.prefixes]))[1] != want
        for kind in KINDS:
            dist.barrier()
            begin = time.perf_counter()
            past = DynamicCache() if kind == "without" else rank.load(ids)
            found = int(past.get_seq_length())
            held = [(x.keys, x.values) for x in past.layers]
            stamps, out = rank.generate(ids, past)
            if i >= args.prefixes:  # the first requests load kernels and fill caches
                firsts[kind].append(stamps[0] - begin)
                gaps[kind].append([b - a for a, b in itertools.pairwise(stamps)])
            if kind != "without":
                wrong += not all(map(torch.equal, itertools.chain(*held), itertools.chain(*kept[i % args.prefixes])))
                loaded += found
                other += out != want
    everywhere = torch.tensor([wrong, loaded], device=rank.device)
    dist.all_reduce(everywhere)
    if not firsts["without"]:
        raise SystemExit(f"the budget of {args.budget:g} s was used up after {done} requests, none of which counts")
    if everywhere[1] != rank.count * done * shared:
        raise SystemExit(f"{int(everywhere[1])} tokens were loaded, not {rank.count * done * shared}")
    if everywhere[0]:
        raise SystemExit(f"{int(everywhere[0])} loads brought other bytes than were kept on the device")
    if rank.number == 0:
        print(f"KV of {done} loads identical to what was kept on the device, {loaded} tokens; requests that generated other"
              f" tokens from it: {other}, in a second run from what was kept: {twice}")  # fmt: skip
    return [summary(kind, firsts[kind], gaps[kind]) for kind in KINDS], first


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the model's shape")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default cuda for 8b")
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt")
    parser.add_argument("--reuse", type=float, default=0.8, help="how much of a prompt is a prefix that was there before")
    parser.add_argument("--prefixes", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--budget", type=float, default=300, help="seconds")
    parser.add_argument("--generate", type=int, default=32, help="tokens")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if args.preset == "8b" else "cpu")
    transformers.logging.set_verbosity_error()
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        rank = Rank(args)
        with rank.cache:
            table, tokens = measure(rank, args)
        if rank.number == 0:
            place = torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU"
            print(f"{rank.count} x {place}, torch {torch.__version__}, transformers {transformers.__version__}, {args.preset}")
            print(f"{table[0]['requests']} requests of {args.tokens} tokens, {args.reuse:.0%} of them there before")
            print(f"{'':<14}{'TTFT p50':>10}{'p99':>8}{'TPOT p50':>10}{'ITL p50':>9}{'p99':>8}  ms")
            for r in table:
                print(f"{r['kind']:<14}{r['ttft_p50_ms']:>10.1f}{r['ttft_p99_ms']:>8.1f}{r['tpot_p50_ms']:>10.2f}"
                      f"{r['itl_p50_ms']:>9.2f}{r['itl_p99_ms']:>8.2f}")  # fmt: skip
            if args.json:
                report = {"ranks": rank.count, "device": place, "args": vars(args), "table": table, "tokens": tokens}
                Path(args.json).write_text(json.dumps(report, indent=1))
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
