"""Runs vLLM for the tests. The process imports vLLM once, and then forks a child for each plan that it reads.

A plan is a line of JSON: {"model": folder, "engine": arguments of LLM, "connector": the class's name, "kvlane": the value of
kv_connector_extra_config, or null for an engine without kvlane, "kv_events": arguments of KVEventsConfig, "metrics": whether
to serve metrics, "log": file for the output, "env": {...}, "steps": [...]}. Other plans have "make" (the name of a model to
make), "identities", or "requests" (a run of steps.py). A step is {"prompts": [[token, ...], ...], "tokens": n}, {"reset":
true} (reset the engine's own prefix cache) or {"reset": "all"} (reset the connector too).

It also forks a child for each program of programs.py.

The reply to a plan is the child's process ID, and later that ID with the exit code. For each step the log has a line "STEP
{...}" with the tokens and the number of cached tokens of each prompt. If the scheduler and worker are in the child itself, the
line also has the number of preemptions, and the jobs of kvlane's worker: "load" or "store", and whether it was layer by layer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any
from unittest import mock

import prometheus_client
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from . import programs


def run(plan: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig

    more: dict[str, Any] = {}
    if plan["kvlane"] is not None:
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector=plan["connector"],
            kv_connector_module_path="kvlane.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=plan["kvlane"],
        )
    if plan.get("kv_events"):
        more["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, **plan["kv_events"])
        print_names()
    jobs, preempted = watch_jobs(), watch_preemptions()
    programs.fork_processes()
    llm = LLM(plan["model"], skip_tokenizer_init=True, enforce_eager=True, **plan["engine"], **more)
    if plan.get("metrics"):  # vLLM's API server serves its metrics in the same way
        server, _ = prometheus_client.start_http_server(0, "127.0.0.1")
        print(f"METRICS {server.server_port}", flush=True)
    print("UP", flush=True)
    for step in plan["steps"]:
        jobs.clear()
        preempted.clear()
        if "reset" in step:
            out = {"reset": llm.reset_prefix_cache(reset_connector=step["reset"] == "all")}
        else:
            outputs = llm.generate(
                [{"prompt_token_ids": p} for p in step["prompts"]],
                SamplingParams(max_tokens=step["tokens"], min_tokens=step["tokens"], temperature=0, detokenize=False, logprobs=1),
                use_tqdm=False,
            )
            out = {
                "tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "logprobs": [[max(p.logprob for p in at.values()) for at in o.outputs[0].logprobs] for o in outputs],
                "cached": [o.num_cached_tokens for o in outputs],
                "reasons": [o.outputs[0].finish_reason for o in outputs],
                "jobs": [list(j) for j in jobs],
                "preempted": len(preempted),
            }
        print("STEP " + json.dumps(out), flush=True)


def watch_jobs() -> list[tuple[str, bool]]:
    """Returns a list that records the jobs that kvlane's worker starts from now on."""
    from kvlane.vllm.worker import Worker

    jobs, start = [], Worker._start

    def watched(self: Worker, job: Any) -> None:
        layerwise = job.layerwise
        start(self, job)
        jobs.append(("load" if job.load else "store", layerwise))

    Worker._start = watched  # type: ignore[method-assign]
    return jobs


def print_names() -> None:
    """Prints a line "NAMED key name" for each block of kvlane's jobs from now on."""
    from kvlane.vllm.events import Recorder

    note = Recorder.note

    def watched(self: Recorder, keys: Any, names: Any, vllm_keys: Any) -> None:
        for i, name in enumerate(names):
            print("NAMED", keys.raw[32 * i : 32 * (i + 1)].hex(), name.hex(), flush=True)
        note(self, keys, names, vllm_keys)

    Recorder.note = watched  # type: ignore[method-assign]


def watch_preemptions() -> list[str]:
    """Returns a list that records the requests that vLLM's scheduler preempts from now on, if it
    is in this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted, preempt = [], Scheduler._preempt_request

    def watched(self: Scheduler, request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(self, request, *args, **kwargs)

    Scheduler._preempt_request = watched
    return preempted


class Layer(AttentionLayerBase):  # type: ignore[misc]
    """A layer with vLLM's attention backend for CPUs, or with one of another name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_attn_backend(self) -> Any:
        return type("Backend", (CPUAttentionBackend,), {"get_name": staticmethod(lambda: self.name)})

    def get_kv_cache_spec(self, vllm_config: Any) -> None:
        return None


@contextlib.contextmanager
def kernels(vllm_config: Any, kv_cache_config: Any, env: dict[str, str]) -> Iterator[None]:
    """Gives the engine layers, and replaces the properties of its kernels and of the machine that
    env names."""
    import platform

    import vllm
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import cpu_attn

    names = kv_cache_config.kv_cache_groups[0].layer_names
    layers = {name: Layer(env.get("BACKEND", "CPU_ATTN")) for name in names if name != env.get("NO_LAYER")}
    vllm_config.compilation_config.static_forward_context.update(layers)
    others: list[tuple[str, Any, str, Any]] = [
        ("VERSION", vllm, "__version__", str),
        ("PLATFORM", type(current_platform), "device_name", str),
        ("MACHINE", platform, "machine", lambda machine: lambda: machine),
        ("ISA", cpu_attn, "_get_attn_isa", lambda isa: lambda *_: isa),
    ]
    with contextlib.ExitStack() as stack:
        for name, where, what, value in others:
            if name in env:
                stack.enter_context(mock.patch.object(where, what, value(env[name])))
        yield


def identities(plan: dict[str, Any]) -> None:
    """Prints the configurations of stores for engines with other arguments and environments, each
    case a [kvlane, arguments, environment]."""
    import torch
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from kvlane import errors
    from kvlane.vllm import config

    for extra, more, env in plan["identities"]:
        os.environ.pop("PYTHONHASHSEED", None)
        os.environ.update(env)
        transfer = KVTransferConfig(
            kv_connector="Connector", kv_connector_module_path="kvlane.vllm", kv_role="kv_both", kv_connector_extra_config=extra
        )
        arguments = {"model": plan["model"], "dtype": "float32", "max_model_len": 512, "skip_tokenizer_init": True} | more
        vllm = EngineArgs(kv_transfer_config=transfer, **arguments).create_engine_config()
        heads = max(1, 2 // vllm.parallel_config.tensor_parallel_size)
        spec = FullAttentionSpec(block_size=32, num_kv_heads=heads, head_size=64, dtype=getattr(torch, arguments["dtype"]))
        kv = KVCacheConfig(1, [], [KVCacheGroupSpec([f"layer{i}" for i in range(4)], spec)])
        kv.kv_cache_layout = env.get("LAYOUT", "LBHNC")
        try:
            groups = config.page_groups(vllm, kv, (0,))
            ranks = range(vllm.parallel_config.tensor_parallel_size)
            with kernels(vllm, kv, env):
                out: Any = [config.store_config(vllm, kv, groups, config.kernels(vllm, kv, (0,)), rank) for rank in ranks]
        except errors.Error as e:
            out = f"{type(e).__name__}: {e}"
        print("STEP " + json.dumps({"stores": out}), flush=True)


def child(plan: dict[str, Any]) -> None:
    os.setsid()
    os.environ.update(plan["env"])
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd in (1, 2):
        os.dup2(log, fd)
    code = 1
    try:
        if plan.get("make"):
            from . import models

            models.save(plan["make"], plan["model"])
        elif plan.get("identities"):
            identities(plan)
        elif plan.get("requests"):
            from . import steps

            print("STEP " + json.dumps(steps.main(plan)), flush=True)
        else:
            run(plan)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # exit without cleanup: stored KV must not depend on an orderly shutdown


def prepare() -> None:
    """Imports vLLM, and does once what each child would do."""
    import vllm.entrypoints.llm
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.multiproc_executor
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging_if_needed
    from vllm.model_executor.models import llama, registry  # noqa: F401
    from vllm.platforms import current_platform

    with contextlib.suppress(ModuleNotFoundError):  # another release's servers need other packages
        import vllm.entrypoints.cli.main
        import vllm.entrypoints.openai.api_server  # noqa: F401

    # vLLM would inspect the class of a model in a new process, which imports vLLM again.
    mock.patch.object(registry, "_run_in_subprocess", lambda inspect: inspect()).start()
    # A child would search all loggers, and its workers all modules for kernels.
    configure_logging_if_needed(LoggingConfig())
    current_platform.register_triton_kernel_overrides()
    mock.patch.object(type(current_platform), "register_triton_kernel_overrides").start()
    gc.collect()
    gc.freeze()  # vLLM collects garbage often, and would search all that is imported


def main() -> None:
    prepare()
    lock = threading.Lock()

    def say(pid: int, code: int | None) -> None:
        with lock:
            print(json.dumps([pid, code]), flush=True)

    def wait(pid: int) -> None:
        say(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    # The main thread forks, and others read.
    plans: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        with open(0, closefd=False) as lines:  # children close sys.stdin, which must not be locked
            for line in lines:
                plans.put(json.loads(line))
        plans.put(None)

    threading.Thread(target=read, daemon=True).start()
    threading.Thread(target=programs.accept, args=(plans,), daemon=True).start()
    say(0, None)
    while (plan := plans.get()) is not None:
        if isinstance(plan, socket.socket):
            programs.fork(plan)
            continue
        pid = os.fork()
        if pid == 0:
            child(plan)
        say(pid, None)
        threading.Thread(target=wait, args=(pid,), daemon=True).start()


if __name__ == "__main__":
    main()
