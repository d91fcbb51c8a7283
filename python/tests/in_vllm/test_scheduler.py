"""Tests how the scheduler's side uses the answers of its Manager."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kvlane.manager import ABSENT, BELOW, THERE, UNDER_WAY


class Manager:
    """A Manager that returns fixed states, records what is reported to it, and admits at most
    `most` blocks of a run."""

    def __init__(self, states: list[int], most: int) -> None:
        self.states, self.most = bytes(states), most
        self.asked: list[Any] = []
        self.times: list[Any] = []

    def lookup(self, blocks: list[Any]) -> bytes:
        assert len(blocks) == len(self.states)
        return self.states

    def worth(self, blocks: list[Any], states: bytes, tokens: int, rest: int) -> int:
        assert len(blocks) == len(states)
        self.asked.append((list(states), tokens, rest))
        return min(self.most, len(blocks))


def lookup(states: list[int], most: int = 1, first: int = 0, block_tokens: int = 16) -> tuple[str, list[Any]]:
    """Looks up all blocks, starting with number `first`. Returns the answers as a string of
    M(iss), P(ending) and H(it), and the calls of worth."""
    from vllm.v1.kv_offload.base import LookupResult

    from kvlane.vllm.scheduler import Scheduler

    manager: Any = Manager(states, most)
    scheduler = Scheduler((0,), events=False, log_seconds=60, block_tokens=block_tokens)
    scheduler.open(manager)
    keys: Any = [bytes([i]) * 8 + bytes(4) for i in range(len(states))]
    context: Any = SimpleNamespace(req_id="r", _offload_key_positions={k: i for i, k in enumerate(keys)})
    scheduler.lookup(keys[first], context)
    letters = {LookupResult.MISS: "M", LookupResult.HIT_PENDING: "P", LookupResult.HIT: "H"}
    assert scheduler.in_files(keys, context) == (BELOW in scheduler._seen["r"].values())
    return "".join(letters[scheduler.lookup(k, context)] for k in keys), manager.asked


def test_blocks_are_hits_where_they_are_worth_loading() -> None:
    assert lookup([THERE, BELOW, BELOW, ABSENT]) == ("HMMM", [([THERE, BELOW, BELOW], 48, 16)])
    assert lookup([THERE, BELOW, BELOW, ABSENT], most=3) == ("HHHM", [([THERE, BELOW, BELOW], 48, 16)])
    assert lookup([THERE, THERE, UNDER_WAY, BELOW]) == ("HMPH", [([THERE, THERE], 32, 32)]), "hits in memory too"
    assert lookup([UNDER_WAY, THERE]) == ("PH", []), "there is no prefix"
    assert lookup([BELOW, BELOW, BELOW, THERE], first=2, most=0) == ("HHMM", [([BELOW, THERE], 32, 0)]), "vLLM has the first two"
    assert lookup([BELOW, BELOW], block_tokens=0) == ("HH", []), "several page groups"


def test_tokens_of_other_requests_are_computed_at_the_same_time() -> None:
    from kvlane.vllm.scheduler import Scheduler

    manager: Any = Manager([THERE, THERE, ABSENT], 2)
    scheduler = Scheduler((0,), events=False, log_seconds=60, block_tokens=16)
    scheduler.open(manager)
    keys: Any = [bytes([i]) * 8 + bytes(4) for i in range(3)]

    def rest(request: str) -> int:
        scheduler.lookup(keys[0], SimpleNamespace(req_id=request, _offload_key_positions={k: i for i, k in enumerate(keys)}))
        return int(manager.asked[-1][2])

    scheduler.scheduled(5)
    assert rest("a") == 16 + 5, "the last block, and the tokens of the last step"
    manager.most = 0
    assert rest("b") == 16 + 5 + 16
    assert rest("c") == 16 + 5 + 16 + 48, "b is computed whole"
    scheduler.scheduled(0)
    scheduler._changed()
    assert rest("d") == 16


GEOMETRY = {
    "name": "m", "dtype": "int8", "layers": 1, "kv_heads": 1, "head_size": 64, "block_tokens": 16, "tp_size": 1, "tp_rank": 0,
    "state": True,
}  # fmt: skip
RANK = {
    "groups": [{"name": "g", "layers": [0], "geometry": GEOMETRY}], "revision": "r", "device": {"driver": "host"},
    "store": {"cache_bytes": 1 << 20},
}  # fmt: skip


def test_events_say_what_is_in_memory() -> None:
    """After evictions, failures and resets, the blocks according to events are the blocks that
    lookups find."""
    from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext

    from kvlane.manager import Manager as Index
    from kvlane.vllm.scheduler import Scheduler

    # vLLM's number of the page group differs from kvlane's.
    scheduler = Scheduler((3,), events=True, log_seconds=60)
    scheduler.open(Index([RANK], 8))
    keys: Any = [bytes([i]) * 32 + (3).to_bytes(4, "big") for i in range(40)]
    context = ReqContext("r")
    there: set[Any] = set()
    reported = {True: 0, False: 0}

    def check() -> None:
        for event in scheduler.take_events():
            assert event.keys
            assert event.medium == Medium.CPU
            reported[event.removed] += len(event.keys)
            if event.removed:
                assert there.issuperset(event.keys)
                there.difference_update(event.keys)
            else:
                there.update(event.keys)
        assert there == {k for k in keys if scheduler.lookup(k, context) == LookupResult.HIT}

    def store(*which: Any, failed: Any = (), success: bool = True) -> None:
        out = scheduler.prepare_store(which, context)
        assert out is not None
        check()
        scheduler.failed([scheduler._name(k) for k in failed])
        scheduler.complete_store(out.keys_to_store, context, success)
        check()

    def load(*which: Any, failed: Any = ()) -> None:
        scheduler.prepare_load(which, context)
        check()
        scheduler.failed([scheduler._name(k) for k in failed])
        scheduler.complete_load(which, context)
        check()

    for _ in range(2):
        store(*keys[:6])
        assert len(there) == 6
        store(*keys[:8], failed=keys[7:8])
        store(*keys[8:12], success=False)
        store(*keys[12:20])
        assert len(there) == 8, "others were evicted"
        load(*there, failed=list(there)[2:4])
        assert len(there) == 6, "a worker has found some wrong"
        out = scheduler.prepare_store(keys[31:32], context)
        scheduler.reset_cache()
        check()
        assert out is not None
        assert not there
    assert reported[True] == reported[False] > 20
    scheduler.shutdown()


def test_loads_report_their_own_times_and_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes as long as its slowest worker. If no step waited for it, its delay lasts until
    its end, without the steps of other requests."""
    from vllm.v1.kv_offload.base import ReqContext

    from kvlane.vllm.scheduler import Scheduler

    reported: list[tuple[float, float]] = []
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def run(*times: tuple[float, float], in_steps: bool = False, files: bool = False, others: int = 0) -> None:
        side = Scheduler((0,), events=False, log_seconds=1e9, block_tokens=16, in_steps=in_steps)
        job = SimpleNamespace(
            blocks=[], evicted=[], anchors=None, direct=False, loaded=lambda *t: reported.append(t), end=lambda *_: None
        )
        side.open(SimpleNamespace(load=lambda _: job))  # type: ignore[arg-type]
        context, key = ReqContext("r"), bytes(8) + bytes(4)
        side._seen["r"] = {key: BELOW if files else THERE}
        side.scheduled(1000)
        now[0] += 40
        side.prepare_load([key], context)
        side.scheduled(others)
        now[0] += 1
        side.scheduled(0)
        now[0] += 4
        side.loaded("other", 9, 0)
        for seconds, waited in times:
            side.loaded("r", seconds, waited)
        side.complete_load([key], context)

    run((2, 0), (3, 0))
    run((2, 0), (3, 4), in_steps=True)  # a step waited for it
    run((2, 0), in_steps=True)  # this load is too large for a step, and has a delay of its own
    run((2, 0), in_steps=True, files=True)
    run((2, 0), others=7)
    run((4.5, 0), others=7)  # it ended before other requests did
    run()  # a failed load
    assert reported == [(3, 5), (3, 4), (2, 0), (2, 5), (2, 4), (4.5, 4.5)]


def test_steps_report_the_time_of_computing() -> None:
    from kvlane.vllm.pace import Pace

    now = Pace(lag=1)
    assert now.step(0.0, {"a": 1000}, False) is None
    assert now.step(2.0, {"a": 1, "b": 500}, False) == (1000, 2.0)
    assert now.step(3.0, {"b": 1}, True) == (501, 1.0)
    assert now.step(9.0, {"b": 1}, False) is None, "it has waited for a load"
    assert now.step(9.5, {"c": 300}, False) is None, "no request goes on"
    assert now.step(19.5, {"d": 300}, False) is None, "there was nothing to do in between"
    ahead = Pace(lag=2)
    starts = ((0.0, 1000), (0.5, 500), (2.0, 1), (3.0, 1), (3.5, 1), (4.0, 1), (4.5, 1))
    steps = [ahead.step(t, {"a": n}, False) for t, n in starts]
    # The device has computed the first 500 tokens of 1,500 before the others. The step after them waits for both.
    assert steps == [None, None, (1000, 2.0), (500, 1.0), None, (1, 1.0), (1, 1.0)]
