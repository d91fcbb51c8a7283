"""Connectors that record when each part of a request with loaded KV begins and ends.

A server with `"kv_connector_module_path": "traced"` and KVLANE_TRACE=FILE in its environment
appends one JSON line per call to FILE. To print where the time to the first token goes:

    python examples/serving/traced.py FILE [FILE...]
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOKUP, START = "get_num_new_matched_tokens", "start_load_kv"
CONNECTOR = (
    LOOKUP, "update_state_after_alloc", "build_connector_meta", "update_connector_output", "handle_preemptions",
    "bind_connector_metadata", START, "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_transfer_results",
    "build_connector_worker_meta", "request_finished", "take_events", "get_kv_connector_stats",
)  # fmt: skip


def record(out: Any, owner: Any, name: str, detail: Callable[[tuple[Any, ...], Any], Any]) -> None:
    """Make a method of a class append its name, begin, end and a detail of its call to a file."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        result = method(*args, **kwargs)
        out.write(json.dumps([name, begin, time.monotonic(), detail(args, result)]) + "\n")
        return result

    setattr(owner, name, wrapper)


def nothing(args: tuple[Any, ...], result: Any) -> None:
    """Return no detail."""


def loaded(args: tuple[Any, ...], result: Any) -> Any:
    """Return the bytes and the seconds of a load's result."""
    return [result.transfer_size, result.transfer_time] if args[1].load else None


def answered(output: Any) -> list[str]:
    """Return the requests for which a step has computed a token."""
    return [request for request, tokens in zip(output.req_ids, output.sampled_token_ids, strict=False) if tokens]


@functools.cache
def begin() -> None:
    """Begin to record this process's calls."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner

    from kvlane.vllm import worker

    out = open(os.environ["KVLANE_TRACE"], "a", buffering=1)  # noqa: SIM115
    record(out, EngineCore, "add_request", lambda args, _: args[1].request_id)
    record(out, Scheduler, "schedule", lambda _, output: output.num_scheduled_tokens)
    record(out, Scheduler, "update_from_output", lambda args, _: answered(args[2]))
    for runner in (gpu_model_runner.GPUModelRunner, model_runner.GPUModelRunner):
        record(
            out,
            runner,
            "execute_model",
            lambda args, _: list(args[1].num_scheduled_tokens),
        )
        record(out, runner, "sample_tokens", nothing)
    record(out, worker.Worker, "_result", loaded)


def traced(theirs: Any) -> Any:
    """Return a subclass of a connector that records its calls."""

    @functools.wraps(theirs.__init__)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        begin()
        theirs.__init__(self, *args, **kwargs)

    connector = type(theirs.__name__, (theirs,), {"__init__": create, "__module__": __name__})
    out = open(os.environ["KVLANE_TRACE"], "a", buffering=1)  # noqa: SIM115
    for name in CONNECTOR:
        if hasattr(theirs, name):
            record(
                out,
                connector,
                name,
                (lambda args, found: [args[1].request_id, found]) if name == LOOKUP else nothing,
            )
    return connector


@functools.cache
def __getattr__(name: str) -> Any:
    modules = {
        "Connector": "kvlane.vllm",
        "LayerwiseConnector": "kvlane.vllm",
        "OffloadingConnector": "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
    }
    if name not in modules:
        raise AttributeError(name)
    return traced(getattr(importlib.import_module(modules[name]), name))


@dataclass
class Call:
    """A recorded call; times in seconds."""

    name: str
    begin: float
    end: float
    detail: Any


def requests(calls: list[Call]) -> Iterator[dict[str, float]]:
    """Yield for each request the milliseconds of each part of the time to its first token.

    Requests that ran beside others are left out.
    """
    for added in (c for c in calls if c.name == "add_request"):
        after = [c for c in calls if c.begin >= added.begin]
        first = next(
            (c for c in after if c.name == "update_from_output" and c.detail and added.detail in c.detail),
            None,
        )
        found = [c for c in after if c.name == LOOKUP and c.detail[0] == added.detail]
        ran = [c for c in after if c.name == "schedule" and added.detail in (c.detail or {})]
        run = next(
            (c for c in after if c.name == "execute_model" and added.detail in c.detail),
            None,
        )
        if first is None or not found or not ran or run is None:
            continue
        within = [c for c in after if c.end <= first.end]
        if any(set(c.detail) - {added.detail} for c in within if c.name == "schedule"):
            continue
        own = sum(c.end - c.begin for c in within if c.name in CONNECTOR)
        load = next(
            (c for c in within if c.name == "_result" and c.detail and c.detail[0]),
            None,
        )
        start = next((c for c in within if c.name == START and c.begin >= found[-1].end), None)
        tokens = found[-1].detail[1][0] or 0
        parts = {
            "tokens": float(tokens),
            "in all": first.end - added.begin,
            "connector's code": own,
        }
        parts["until the lookup"] = found[-1].begin - added.begin
        if tokens and start is not None:
            parts["lookup to load"] = start.begin - found[-1].end
            if start.end < ran[0].begin:  # not within the step
                parts["start of load to schedule"] = ran[0].begin - start.begin
        if tokens and load is not None:
            parts |= {"load": load.detail[1], "GB": load.detail[0] / 1e12}
        parts |= {
            "schedule to launch": run.begin - ran[0].begin,
            "step to first token": first.end - run.begin,
        }
        yield {name: value if name == "tokens" else 1000 * value for name, value in parts.items()}


def report(path: Path) -> str:
    """Return the medians of each part, for each number of loaded tokens."""
    calls = sorted(
        (Call(*json.loads(line)) for line in path.read_text().splitlines()),
        key=lambda c: c.begin,
    )
    rows = list(requests(calls))
    lines = [f"{path.name}: {len(rows)} requests; medians in ms"]
    for tokens in sorted({r["tokens"] for r in rows}):
        group = [r for r in rows if r["tokens"] == tokens]
        names = [name for name in dict.fromkeys(name for r in group for name in r) if name != "tokens"]
        middle = (f"{n} {statistics.median(r[n] for r in group if n in r):.2f}" for n in names)
        lines.append(f"  {len(group)} loaded {tokens:.0f} tokens: " + ", ".join(middle))
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n".join(report(Path(name)) for name in sys.argv[1:]))
