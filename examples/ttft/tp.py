"""A model on several GPUs, whose requests have most of their prompt in common with earlier ones.

    torchrun --nproc-per-node 2 tp.py --preset 8b        # on two GPUs
    torchrun --nproc-per-node 2 tp.py                    # a tiny model, two processes on the CPU

Tensor parallel by torch: each process has its part of the heads, and a store of its own of their KV. A request's prefix is
what all of them have. Requests come one after another: 1,024 tokens, of which 80 % are one of a few prefixes, and 32 tokens
are generated. Without the store the whole prompt is computed. The tokens have to be those of a run that kept the prefix on
the GPUs.
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
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig
from ttft import PRESETS

from kvlane.transformers import KVLaneCache

KINDS = ("without", "with kvlane")
PARTS = {
    **{f"self_attn.{name}_proj": ColwiseParallel for name in "qkv"},
    **{f"mlp.{name}_proj": ColwiseParallel for name in ("gate", "up")},
    "self_attn.o_proj": RowwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}


class Rank:
    """This process's part of the model, and its store."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.number, self.count = args, dist.get_rank(), dist.get_world_size()
        cuda = args.device == "cuda"
        self.device = torch.device("cuda", self.number) if cuda else torch.device("cpu")
        torch.manual_seed(0)  # the same weights everywhere, of which each keeps its part
        config = LlamaConfig(**PRESETS[args.preset], bos_token_id=1, eos_token_id=None, pad_token_id=None)
        with self.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if cuda else torch.float32).eval()
        mesh = dist.init_device_mesh(args.device, (self.count,))
        for layer in self.model.model.layers:
            parallelize_module(layer, mesh, {name: part() for name, part in PARTS.items()})
        self.heads = config.num_key_value_heads // self.count
        head = config.hidden_size // config.num_attention_heads
        token = 2 * config.num_hidden_layers * self.heads * head * self.model.dtype.itemsize
        self.cache = KVLaneCache(
            self.model,
            {"cache_bytes": 2 * args.prefixes * args.tokens * token + (64 << 20)},
            block_tokens=args.block_tokens,
            weights=f"seed 0, part {self.number} of {self.count}",
        )

    def common(self, n: int) -> int:
        """The least of what all processes say."""
        t = torch.tensor([n], device=self.device)
        dist.all_reduce(t, op=dist.ReduceOp.MIN)
        return int(t)

    def load(self, ids: Any) -> Any:
        """The longest prefix that all processes have."""
        past = self.cache.load(ids)
        found = int(past.get_seq_length())
        if (n := self.common(found)) < found:
            past = DynamicCache([(x.keys[:, :, :n], x.values[:, :, :n]) for x in past.layers]) if n else DynamicCache()
        return past

    def generate(self, ids: Any, past: Any) -> tuple[list[float], list[int]]:
        """Tokens after ids, greedily, and when each was known. past is used up."""
        stamps, out = [], list[int]()
        rest = ids[:, int(past.get_seq_length()) :].to(self.device)
        with torch.no_grad():
            for _ in range(self.args.generate):
                logits = self.model(rest, past_key_values=past, use_cache=True, logits_to_keep=1).logits[:, -1]
                rest = logits.argmax(-1, keepdim=True)
                out.append(int(rest))
                stamps.append(time.perf_counter())
        return stamps, out


def prompts(args: argparse.Namespace) -> list[Any]:
    """[1, tokens] each: a prefix of whole blocks, one of a few in turn, and what only this request has."""
    shared = int(args.reuse * args.tokens) // args.block_tokens * args.block_tokens
    g = torch.Generator().manual_seed(1)
    heads = [torch.randint(3, 1000, (1, shared), generator=g) for _ in range(args.prefixes)]
    tails = [torch.randint(3, 1000, (1, args.tokens - shared), generator=g) for _ in range(args.requests)]
    return [torch.cat((heads[i % args.prefixes], tail), 1) for i, tail in enumerate(tails)]


def summary(name: str, firsts: list[float], gaps: list[list[float]]) -> dict[str, Any]:
    """Milliseconds: to the first token, a further token of a request on average, and between two tokens."""
    each = sorted(g for gap in gaps for g in gap)

    def ms(values: list[float], share: float) -> float:
        ordered = sorted(values)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "requests": len(firsts), "kind": name, "ttft_p50_ms": ms(firsts, 0.5), "ttft_p99_ms": ms(firsts, 0.99),
        "tpot_p50_ms": 1e3 * statistics.median(statistics.mean(g) for g in gaps),
        "itl_p50_ms": ms(each, 0.5), "itl_p99_ms": ms(each, 0.99),
    }  # fmt: skip


def measure(rank: Rank, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Requests without and with the store, in turns, and whether tokens were those of prefixes kept on the device."""
    every = prompts(args)
    shared = int(args.reuse * args.tokens) // args.block_tokens * args.block_tokens
    kept = []
    for ids in every[: args.prefixes]:  # computed and stored once, as earlier requests would have
        past = DynamicCache()
        rank.generate(ids, past)
        rank.cache.save(ids[:, :shared], DynamicCache([(x.keys[:, :, :shared], x.values[:, :, :shared]) for x in past.layers]))
        kept.append([(x.keys[:, :, :shared].clone(), x.values[:, :, :shared].clone()) for x in past.layers])
    firsts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    gaps: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    wrong = loaded = 0
    for i, ids in enumerate(every):
        _, want = rank.generate(ids, DynamicCache(kept[i % args.prefixes]))
        for kind in KINDS:
            dist.barrier()
            begin = time.perf_counter()
            past = DynamicCache() if kind == "without" else rank.load(ids)
            found = int(past.get_seq_length())
            stamps, out = rank.generate(ids, past)
            if i >= args.prefixes:  # not of the first ones, which load kernels and fill caches
                firsts[kind].append(stamps[0] - begin)
                gaps[kind].append([b - a for a, b in itertools.pairwise(stamps)])
            if kind != "without":
                wrong += out != want
                loaded += found
    everywhere = torch.tensor([wrong, loaded], device=rank.device)
    dist.all_reduce(everywhere)
    if everywhere[1] != rank.count * len(every) * shared:
        raise SystemExit(f"{int(everywhere[1])} tokens were loaded, not {rank.count * len(every) * shared}")
    if everywhere[0]:
        raise SystemExit(f"{int(everywhere[0])} requests had other tokens than with the prefix kept on the device")
    return [summary(kind, firsts[kind], gaps[kind]) for kind in KINDS]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the model's shape")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default cuda for 8b")
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt")
    parser.add_argument("--reuse", type=float, default=0.8, help="how much of a prompt is a prefix that was there before")
    parser.add_argument("--prefixes", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--generate", type=int, default=32, help="tokens")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if args.preset == "8b" else "cpu")
    transformers.logging.set_verbosity_error()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    try:
        rank = Rank(args)
        with rank.cache:
            table = measure(rank, args)
        if rank.number == 0:
            place = torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU"
            print(f"{rank.count} x {place}, torch {torch.__version__}, transformers {transformers.__version__}, {args.preset}")
            print(f"{'':<14}{'TTFT p50':>10}{'p99':>8}{'TPOT p50':>10}{'ITL p50':>9}{'p99':>8}  ms")
            for r in table:
                print(f"{r['kind']:<14}{r['ttft_p50_ms']:>10.1f}{r['ttft_p99_ms']:>8.1f}{r['tpot_p50_ms']:>10.2f}"
                      f"{r['itl_p50_ms']:>9.2f}{r['itl_p99_ms']:>8.2f}")  # fmt: skip
            print(f"all tokens are those of prefixes kept on the device; {rank.cache.counts['tokens_loaded']} tokens loaded")
            if args.json:
                Path(args.json).write_text(
                    json.dumps({"ranks": rank.count, "device": place, "args": vars(args), "table": table}, indent=1)
                )
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
