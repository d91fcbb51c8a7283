"""Runs vLLM's scheduler and a kvlane connector without a model. The KV of a token is a number
computed from all tokens up to it, so that a request that reads wrong KV detects it. Requests
share prefixes and are aborted at random, files are damaged while requests load from them, and
pages are scarce."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvlane import vllm as ours

from .run import Layer, watch_jobs

PAGES, BLOCK, SIZE, LAYERS = 48, 16, 8, 3
WRONG = 7  # the token of a request that read wrong KV; no prompt contains it
BATCH = 64
PATIENCE = 400.0  # timeout in seconds


class Rig:
    """An engine's scheduler, connector and KV cache."""

    def __init__(
        self, model: str, connector: str, folder: str, rng: random.Random, *, ahead: bool = False, budget: int = 0
    ) -> None:
        self.rng, self.folder = rng, Path(folder)
        transfer = KVTransferConfig(
            kv_connector=connector, kv_connector_module_path="kvlane.vllm", kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"store": {"cache_bytes": 24 * (LAYERS * 1024 + 4096), "dirs": [folder]}, "log_seconds": 0,
                "layerwise_files": True, **({"sync_load_budget_bytes": budget} if budget else {})},
        )  # fmt: skip
        config = EngineArgs(
            kv_transfer_config=transfer, model=model, dtype="float32", max_model_len=512, skip_tokenizer_init=True,
            max_num_batched_tokens=BATCH, max_num_seqs=6, block_size=BLOCK, async_scheduling=ahead,
        ).create_engine_config()  # fmt: skip
        names = [f"layer{i}" for i in range(LAYERS)]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=SIZE, dtype=torch.float32)
        page = spec.page_size_bytes
        tensor = KVCacheTensor(size=page * PAGES * LAYERS, layers=names, layer_stride=page * PAGES, block_stride=page)
        kv = KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[tensor], kv_cache_groups=[KVCacheGroupSpec(names, spec)])
        config.cache_config.num_gpu_blocks = PAGES
        config.compilation_config.static_forward_context.update({name: Layer("CPU_ATTN") for name in names})
        size, hash_size = resolve_kv_cache_block_sizes(kv, config)
        self.scheduler = (AsyncScheduler if ahead else Scheduler)(
            vllm_config=config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(config),
            block_size=size, hash_block_size=hash_size, log_stats=True,
        )  # fmt: skip
        self.layers = {name: torch.zeros(PAGES, 2, BLOCK, 1, SIZE) for name in names}
        self.connector = getattr(ours, connector)(config, KVConnectorRole.WORKER, kv)
        with set_current_vllm_config(config):
            self.connector.register_kv_caches(self.layers)
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): self.connector.get_handshake_metadata()})
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(hash_size, sha256)
        self.requests: list[Request] = []
        self.recovered = 0
        self.in_step = 0  # number of steps with loads for their own requests

    def ask(self, tokens: list[int], answer: int) -> None:
        """Adds a request."""
        r = Request(
            request_id=str(len(self.requests)), prompt_token_ids=tokens, pooling_params=None, block_hasher=self.hasher,
            sampling_params=SamplingParams(max_tokens=answer, ignore_eos=True),
        )  # fmt: skip
        self.requests.append(r)
        self.scheduler.add_request(r)

    def step(self, abort: float) -> None:
        """Runs one step of scheduler and worker. With the probability `abort` a request is aborted
        during the step."""
        plan = self.scheduler.schedule()
        c = self.connector
        c.handle_preemptions(plan.kv_connector_metadata)
        c.bind_connector_metadata(plan.kv_connector_metadata)
        if plan.has_sync_kv_loads:
            c.start_load_kv(None)
        tokens = self.forward(plan.num_scheduled_tokens)
        if not plan.has_sync_kv_loads:
            c.start_load_kv(None)
        c.wait_for_save()
        ended = c.get_transfer_results(plan.finished_req_ids)
        out = KVConnectorOutput(
            finished_sending=ended.finished_sending, finished_recving=ended.finished_recving, failed_recving=ended.failed_recving,
            invalid_block_ids=c.get_block_ids_with_load_errors(), kv_connector_worker_meta=c.build_connector_worker_meta(),
        )  # fmt: skip
        c.clear_connector_metadata()
        self.recovered += bool(out.invalid_block_ids)
        self.in_step += plan.has_sync_kv_loads
        if plan.num_scheduled_tokens and self.rng.random() < abort:
            self.scheduler.finish_requests(self.rng.choice(list(plan.num_scheduled_tokens)), RequestStatus.FINISHED_ABORTED)
        ids = list(plan.num_scheduled_tokens)
        self.scheduler.update_from_output(
            plan,
            ModelRunnerOutput(
                req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=[tokens[r] for r in ids],
                kv_connector_output=out,
            ),
        )  # fmt: skip
        if not ids:
            time.sleep(0.001)

    def forward(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        """Stands for the model: computes the KV of new tokens from all earlier ones, layer by
        layer, and samples."""
        work = []
        for request_id, n in scheduled.items():
            r = self.scheduler.requests[request_id]
            (pages,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
            end = r.num_computed_tokens
            values = prefix_values(list(r.all_token_ids[:end]))
            slots = torch.tensor([pages[i // BLOCK] * BLOCK + i % BLOCK for i in range(end)])
            work.append((request_id, r, end - n, end, values, slots))
        wrong: set[str] = set()
        for name, memory in self.layers.items() if work else ():
            flat = memory.transpose(1, 2).reshape(PAGES * BLOCK, -1)  # the transpose makes reshape copy
            for request_id, _, start, end, values, slots in work:
                new = values[start:end] + (0.5 if request_id in wrong else 0.0)
                for slot, value in zip(slots[start:end].tolist(), new.tolist(), strict=True):
                    memory[slot // BLOCK, :, slot % BLOCK] = value
            self.connector.wait_for_layer_load(name)
            flat = memory.transpose(1, 2).reshape(PAGES * BLOCK, -1)
            for request_id, _, _, _, values, slots in work:
                if not torch.equal(flat[slots], values[:, None].expand(-1, flat.shape[1])):
                    wrong.add(request_id)
            self.connector.save_kv_layer(name, memory, None)
        return {
            request_id: ([WRONG if request_id in wrong else 10 + int(values[-1]) % 400] if end >= r.num_tokens else [])
            for request_id, r, _, end, values, _ in work
        }

    def damage(self) -> None:
        """Flips a bit of a random file."""
        files = sorted(p for p in self.folder.rglob("*") if "tmp" not in p.parts[len(self.folder.parts) :] and p.is_file())
        with contextlib.suppress(OSError, IndexError):  # a file may be removed meanwhile; there may be none yet
            file = self.rng.choice([p for p in files if p.stat().st_size > 2048])
            data = bytearray(file.read_bytes())
            data[self.rng.randrange(len(data))] ^= 4
            file.write_bytes(data)


def prefix_values(tokens: list[int]) -> torch.Tensor:
    """Returns a number for each token, computed from it and all earlier tokens."""
    out, value = [], 0
    for t in tokens:
        value = (value * 1000003 + t + 1) % (1 << 20)
        out.append(float(value))
    return torch.tensor(out)


def main(plan: dict[str, Any]) -> dict[str, Any]:
    """Submits many requests, and reports counts of their outcomes."""
    rng = random.Random(plan["seed"])
    jobs = watch_jobs()
    from .ahead import AheadRig

    budget = plan.get("budget", 0)
    rig = (AheadRig if plan.get("ahead") else Rig)(plan["model"], plan["connector"], plan["folder"], rng, budget=budget)
    stems = [[rng.randrange(10, 400) for _ in range(rng.choice((64, 96, 128)))] for _ in range(10)]
    left, deadline = plan["requests"], time.monotonic() + PATIENCE
    while left or rig.scheduler.has_unfinished_requests():
        assert time.monotonic() < deadline, f"{left} requests left, {len(rig.scheduler.running)} running"
        if left and len(rig.scheduler.requests) < rng.choice((1, 5)):
            rig.scheduler.reset_prefix_cache()  # has no effect while requests run
            stem = rng.choice(stems)
            for _ in range(min(left, rng.choice((1, 4)))):  # these requests arrive together and share a prefix
                left -= 1
                more = [rng.randrange(10, 400) for _ in range(rng.choice((3, 20, 60)))]
                rig.ask(stem[: rng.choice((len(stem), len(stem), 48))] + more, rng.randrange(1, 12))
        rig.step(plan["abort"])
        if rng.random() < plan["damage"]:
            rig.damage()
    for _ in range(20):
        rig.step(0)
    answers = [list(r.output_token_ids) for r in rig.requests]
    stats = rig.scheduler.connector.scheduler.manager.stats()
    rig.scheduler.connector.shutdown()
    rig.connector.shutdown()
    return {
        "requests": len(answers),
        "wrong": sum(WRONG in a for a in answers),
        "ends": sorted({r.get_finished_reason().name for r in rig.requests}),
        "recovered": rig.recovered,
        "in_step": rig.in_step,
        "layerwise": {kind: sum(k == kind and by_layer for k, by_layer in jobs) for kind in ("load", "store")},
        "whole": {kind: sum(k == kind and not by_layer for k, by_layer in jobs) for kind in ("load", "store")},
        "stats": stats,
        "ahead": {"loads": rig.store.loads, "behind": rig.store.behind, "late": rig.late} if isinstance(rig, AheadRig) else None,
    }
