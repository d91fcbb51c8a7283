"""Tests the OpenTelemetry spans of a store and of vLLM's scheduler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kvlane
from kvlane._traces import Tracer

from .test_scheduler import GEOMETRY, RANK


@pytest.fixture
def spans() -> Any:
    """Returns a provider and its exporter, which keeps the ended spans."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def lines(exporter: Any) -> list[str]:
    """Returns the name, the blocks and the status of each ended span."""
    return [
        f"{s.name} {s.attributes['kvlane.blocks']} {s.status.status_code.name}"
        for s in exporter.get_finished_spans()
        if s.name != "request"
    ]


def test_spans_of_a_store(spans: Any) -> None:
    provider, exporter = spans
    config = {
        "model": {k: v for k, v in GEOMETRY.items() if k != "state"},
        "device": {"driver": "host"},
        "store": {"cache_bytes": 1 << 20},
    }
    with kvlane.Store(config) as store:
        kv = torch.zeros(2, 4, 16, 64, dtype=torch.int8)
        cache = kvlane.PagedCache(store, kv)
        keys = store.token_keys(list(range(32)), 16)
        store.lookup(keys)
        assert lines(exporter) == [], "off by default"
        store.trace(provider)
        with provider.get_tracer("test").start_as_current_span("request") as request:
            store.dump(cache, keys, [0, 1]).result(10)
            with store.lease(keys) as lease:
                store.load(cache, keys, [2, 3], lease).result(10)
            store.lookup(keys)
            absent = store.load(cache, store.token_keys(list(range(100, 116)), 16), [0])
            assert absent.wait(10)
        cache.close()
    assert lines(exporter)[:4] == ["kvlane.dump 2 UNSET", "kvlane.lease 2 UNSET", "kvlane.load 2 UNSET", "kvlane.lookup 2 UNSET"]
    assert "kvlane.load 1 ERROR" in lines(exporter)
    parents = {s.parent.span_id for s in exporter.get_finished_spans() if s.name != "request"}
    assert parents == {request.get_span_context().span_id}


def test_spans_of_requests_are_below_those_of_vllm(spans: Any) -> None:
    """Spans of a request with trace headers have their span as parent. A load of which a block
    failed has an error."""
    from vllm.v1.kv_offload.base import ReqContext

    from kvlane.manager import Manager
    from kvlane.vllm.scheduler import Scheduler

    provider, exporter = spans
    scheduler = Scheduler((0,), events=False, log_seconds=60, tracer=Tracer(provider))
    scheduler.open(Manager([RANK], 8))
    keys: Any = [bytes([i]) * 32 + bytes(4) for i in range(3)]
    context = ReqContext("r")
    scheduler.traced("r", {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    scheduler.lookup(keys[0], context)
    out = scheduler.prepare_store(keys, context)
    assert out is not None
    scheduler.complete_store(out.keys_to_store, context)
    scheduler.prepare_load(keys, context)
    scheduler.failed([scheduler._name(keys[1])])
    scheduler.complete_load(keys, context)
    scheduler.shutdown()
    assert lines(exporter) == ["kvlane.lookup 1 UNSET", "kvlane.dump 3 UNSET", "kvlane.load 3 ERROR"]
    for span in exporter.get_finished_spans():
        assert format(span.parent.span_id, "016x") == "cd" * 8
        assert format(span.context.trace_id, "032x") == "ab" * 16
