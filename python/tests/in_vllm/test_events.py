"""Tests KV events: an index from the event socket of a running vLLM has the contents of the
stores."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvlane.store import LOST, REMOVED, STORED, Event

from .test_engine import DRAIN, RESET, ask, files, prompt

BLOCK = 4 * 2 * 2 * 64 * 4 * 32  # bytes of a block of the model "llama"


class Index:
    """The hashes of stored blocks by medium, from the event socket of an engine."""

    def __init__(self) -> None:
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.stored: dict[str, set[int]] = {}
        self.seen: Counter[tuple[str, str]] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while self.socket.poll(200) or not self._ended.is_set():
            if self.socket.poll(0):
                _, _, payload = self.socket.recv_multipart()
                for event in msgspec.msgpack.decode(payload)[1]:
                    self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":  # of the GPU, by RESET
            return
        held = self.stored.setdefault(event["medium"], set())
        self.seen[event["type"], event["medium"]] += len(event["block_hashes"])
        if event["type"] == "BlockStored":
            held.update(event["block_hashes"])
            assert event.get("ownership") == {"FILE": "file"}.get(event["medium"])
        else:
            assert held.issuperset(event["block_hashes"]), "removed, and not stored"
            held.difference_update(event["block_hashes"])

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.socket.close()


def number(name: bytes) -> int:
    """Returns vLLM's hash of a block in events, from kvlane's name of it."""
    return int.from_bytes(name[:-4], "big") & (2**64 - 1)


def test_index_from_the_event_socket(start: Any, tmp_path: Path) -> None:
    """Blocks are evicted from memory and from files, and loaded from files."""
    index = Index()
    store = {"cache_bytes": 12 * BLOCK, "file_bytes": 20 * BLOCK, "dirs": [str(tmp_path / "kv")], "admission": "always"}
    try:
        steps = [*(ask(prompt(i)) for i in range(4)), DRAIN, RESET, ask(prompt(2)), DRAIN]
        ran = start(steps, kvlane={"store": store}, kv_events={"publisher": "zmq", "endpoint": index.endpoint}).ended()
    finally:
        index.end()
    lines = [line.split() for line in ran.text.splitlines() if line.startswith("NAMED ")]
    named = {key: bytes.fromhex(name) for _, key, name in lines}
    in_files = {number(named[f.name]) for f in files(tmp_path / "kv")}
    assert index.stored["FILE"] == in_files
    assert index.seen["BlockRemoved", "FILE"] > 5, index.seen
    assert ran.steps[-2]["cached"] == [288], "loaded from files"
    stats = [json.loads(line.split("kvlane: ")[1]) for line in ran.text.splitlines() if 'kvlane: {"' in line][-1]
    assert stats["from_files"] > 0
    assert len(index.stored["CPU"]) == stats["blocks"]
    assert index.seen["BlockRemoved", "CPU"] > 10, index.seen


class Fake:
    """A store that has these events."""

    def __init__(self, *events: Event) -> None:
        self.waiting = [[Event(LOST, "cache", b"")]]
        self.add(*events)

    def add(self, *events: Event) -> None:
        self.waiting.append(list(events))

    def events(self) -> list[Event]:
        return self.waiting.pop(0) if self.waiting else []


def test_a_block_is_stored_when_all_ranks_have_it() -> None:
    from vllm.v1.kv_offload.base import Locality, Medium

    from kvlane.keys import Keys
    from kvlane.vllm.events import Below, Recorder

    keys = [bytes([i]) * 32 for i in range(3)]
    names = [bytes([i]) * 4 for i in range(3)]
    stores = [Fake(), Fake()]
    recorders = [Recorder(s, rank) for rank, s in enumerate(stores)]  # type: ignore[arg-type]
    for r in recorders:
        r.note(Keys(b"".join(keys)), names, names)
    below = Below(2, ["cache", "file", "remote"])

    def events() -> list[tuple[str | None, bool, list[bytes]]]:
        for r in recorders:
            below.apply(r.take())
        taken = below.take()
        assert all(e.medium == Medium.STORAGE for e in taken)
        assert all((e.locality == Locality.REMOTE) == (e.ownership == "remote") for e in taken)
        return [(e.ownership, e.removed, [bytes(k) for k in e.keys]) for e in taken]

    assert events() == []
    stores[0].add(Event(STORED, "cache", keys[0]), *(Event(STORED, "file", k) for k in keys), Event(STORED, "file", b"unknown"))
    assert events() == [], "the other rank has none"
    stores[1].add(*(Event(STORED, "file", k) for k in keys), Event(STORED, "remote", keys[1]))
    assert events() == [("file", False, names)]
    stores[0].add(Event(STORED, "remote", keys[1]), Event(REMOVED, "file", keys[1]), Event(REMOVED, "cache", keys[0]))
    assert events() == [("remote", False, names[1:2]), ("file", True, names[1:2])]
    stores[1].add(Event(REMOVED, "file", keys[1]))
    assert events() == [], "it is reported once"
    below.gone(names[1])
    below.gone(b"other")
    assert events() == [("remote", True, names[1:2])]
    below.found(names[1], names[1], files=False)
    below.found(names[1], names[1], files=True)
    assert events() == [("remote", False, names[1:2]), ("file", False, names[1:2])]
    stores[0].add(Event(LOST, "cache", b""))
    assert events()[0][:2] == ("file", True), "after a loss of events"
    below.reset()
    assert {e[:2] for e in events()} <= {("file", True), ("remote", True)}
    assert all(not held for held in below._held.values())


def test_blocks_whose_removal_is_never_reported_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and other processes remove blocks without an event. The oldest count as removed."""
    from kvlane.keys import Keys
    from kvlane.vllm import events

    monkeypatch.setattr(events, "_MOST", 2)
    keys = [bytes([i]) * 32 for i in range(4)]
    names = [bytes([i]) * 4 for i in range(4)]
    store = Fake(*(Event(STORED, "remote", k) for k in keys))
    recorder = events.Recorder(store, 0)  # type: ignore[arg-type]
    recorder.note(Keys(b"".join(keys)), names, names)
    changes = recorder.take()
    assert [c.name for c in changes if not c.stored] == names[:2]
    below = events.Below(1, ["cache", "remote"])
    below.apply(c for c in changes if c.stored)
    below.found(names[0], names[0], files=False)
    gone = [bytes(k) for e in below.take() if e.removed for k in e.keys]
    assert gone == names[:3]
    assert list(below._held["remote"]) == [names[3], names[0]]
