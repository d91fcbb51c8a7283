"""Tests Store and PagedCache over numpy arrays."""

from __future__ import annotations

import array
import asyncio
import copy
import logging
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from conftest import FORKED, HEADS, LAYERS, MODEL, SIZE, TOKENS, config, in_child

import kvlane
from kvlane import Keys, _lib
from kvlane._writes import Writes
from kvlane.store import LOST, REMOVED, STORED, Event

PAGES = 32
Open = Callable[..., kvlane.Store]


def arrays(pages: int = PAGES) -> Any:
    """Returns random arrays of the shape [layers, 2, pages, tokens, heads, size]."""
    return np.random.default_rng(7).standard_normal((LAYERS, 2, pages, TOKENS, HEADS, SIZE)).astype(np.float32)


def keys_of(store: kvlane.Store, blocks: int, salt: int = 0) -> kvlane.Keys:
    return store.token_keys([salt, *range(1, blocks * TOKENS)], TOKENS)


def dump(store: kvlane.Store, cache: kvlane.PagedCache, keys: kvlane.Keys, pages: object) -> None:
    store.dump(cache, keys, pages).result(30)


def test_one_version() -> None:
    header = (pathlib.Path(__file__).parents[2] / "cmd/libkvlane/kvlane.h").read_text()
    assert f'#define KVL_VERSION "{kvlane.__version__}"\n' in header
    assert _lib.library().version() == kvlane.__version__


def test_identities_share_the_bound_of_a_directory(open_store: Open, dirs: list[str]) -> None:
    image = 4096 + LAYERS * max(4096, 2 * TOKENS * HEADS * SIZE * 4)
    bound = 40 * image
    for revision in range(4):
        store = open_store(
            revision=f"r{revision}", store={"dirs": [f"{dirs[0]}/kv-{revision}"], "shared_bound": True, "file_bytes": bound}
        )
        with kvlane.PagedCache(store, arrays(), "lkp") as cache:
            keys = keys_of(store, PAGES)
            dump(store, cache, keys, range(PAGES))
        store.close(30)
        blocks = [p for p in pathlib.Path(dirs[0]).rglob("*") if len(p.name) == 64]
        assert {p.stat().st_size for p in blocks} == {image}
        assert len(blocks) <= 40
        assert sum(p.parts[-3] == f"kv-{revision}" for p in blocks) == PAGES


def test_dump_close_open_load_is_identical(open_store: Open, dirs: list[str]) -> None:
    kv = arrays()
    first = open_store(store={"dirs": dirs})
    keys = keys_of(first, 8)
    with kvlane.PagedCache(first, kv, "lkp") as cache:
        dump(first, cache, keys, range(8))
    first.close(30)

    second = open_store(store={"dirs": dirs})
    assert second.lookup(keys) == b"\2" * 8
    back = np.zeros_like(kv)
    with kvlane.PagedCache(second, back, "lkp") as cache, second.lease(keys) as lease:
        assert lease.found == len(lease) == 8
        task = second.load(cache, keys, np.arange(20, 28, dtype=np.uint32), lease, layerwise=True)
        task.wait_layer(0, 30)
        task.result(30)
        assert task.done()
        assert task.wait(0)
        assert all(r == (kvlane.Status.OK, False) for r in task.results())
    np.testing.assert_array_equal(back[:, :, 20:28], kv[:, :, :8])
    assert not back[:, :, :20].any()
    assert not back[:, :, 28:].any()


@pytest.mark.parametrize("layout", ["lkp", "kp", "p", "plk", "fused", "separate"])
def test_every_layout_carries_the_same_bytes(open_store: Open, dirs: list[str], layout: str) -> None:
    """A block that is dumped from one layout can be loaded into another."""
    kv = arrays()
    store = open_store(store={"dirs": dirs})
    keys = keys_of(store, 4)
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        dump(store, cache, keys, range(4))
    page = (TOKENS, HEADS, SIZE)
    shapes = {
        "lkp": (LAYERS, 2, PAGES),
        "kp": (2, PAGES),
        "p": (PAGES,),
        "plk": (PAGES, LAYERS, 2),
        "fused": (PAGES, 2),
        "separate": (PAGES,),
    }
    n = {"lkp": 1, "plk": 1, "p": 2 * LAYERS, "separate": 2 * LAYERS}.get(layout, LAYERS)
    tensors: list[Any] = [np.zeros((*shapes[layout], *page), np.float32) for _ in range(n)]
    with kvlane.PagedCache(store, tensors, layout if layout in ("lkp", "kp", "plk") else "p") as cache:
        store.load(cache, keys, [3, 2, 1, 0]).result(30)
    match layout:
        case "lkp":
            got = tensors[0]
        case "kp":
            got = np.stack(tensors)
        case "plk":
            got = np.moveaxis(tensors[0], 0, 2)
        case "fused":
            got = np.moveaxis(np.stack(tensors), 1, 2)
        case _:
            got = np.stack(tensors).reshape(LAYERS, 2, PAGES, *page)
    np.testing.assert_array_equal(got[:, :, 3::-1][:, :, :4], kv[:, :, :4])


def test_prefix_ends_at_the_first_miss(open_store: Open) -> None:
    store = open_store()
    keys = keys_of(store, 6)
    kv = arrays()
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        dump(store, cache, keys[:3] + keys[4:], [0, 1, 2, 3, 4])
        assert store.lookup(keys) == b"\1\1\1\0\1\1"
        with store.lease(keys) as lease:
            assert lease.found == 3
        task = store.load(cache, keys[2:4], [5, 6])
        with pytest.raises(kvlane.NotFound) as e:
            task.result(30)
        assert e.value.status == kvlane.Status.NOT_FOUND
        assert isinstance(e.value, kvlane.Error)
        assert [r.status for r in task.results()] == [kvlane.Status.OK, kvlane.Status.NOT_FOUND]


def test_keys() -> None:
    raw = bytes(range(96))
    keys = kvlane.Keys(raw)
    assert len(keys) == 3
    assert keys[1] == keys[-2] == raw[32:64]
    assert keys[1:].raw == raw[32:]
    assert keys[::2] == kvlane.Keys([raw[:32], raw[64:]])
    assert keys[2:1] == kvlane.Keys()
    assert list(keys) == [raw[:32], raw[32:64], raw[64:]]
    assert keys[:1] + keys[1:] == keys
    assert {keys: 1}[kvlane.Keys(bytearray(raw))] == 1
    assert len({*keys}) == 3
    with pytest.raises(IndexError):
        keys[3]
    with pytest.raises(kvlane.Invalid):
        kvlane.Keys(b"short")


def test_hashes_chain_and_do_not_depend_on_the_process() -> None:
    tokens = list(range(100, 100 + 3 * 16 + 5))
    whole = kvlane.hash_tokens(tokens, 16)
    assert len(whole) == 3 * 32
    for same in (np.array(tokens), np.array(tokens, np.int32), array.array("q", tokens), tuple(tokens)):
        assert kvlane.hash_tokens(same, 16) == whole
    assert kvlane.hash_tokens(tokens[16:], 16, parent=whole[:32]) == whole[32:]
    assert kvlane.hash_tokens(tokens[:15], 16) == b""
    assert kvlane.hash_tokens([0, *tokens[1:]], 16)[64:] != whole[64:]
    code = "import kvlane; print(kvlane.hash_tokens(list(range(100, 153)), 16).hex())"
    for seed in ("0", "1", "random"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=600).strip() == whole.hex()


@pytest.mark.parametrize("change", [
    {"revision": "other"}, {"tenant": "other"}, {"adapter": "lora"},
    {"model": {"name": "other"}}, {"model": {"dtype": "float16"}}, {"model": {"layers": LAYERS + 1}},
    {"model": {"head_size": SIZE * 2}}, {"model": {"block_tokens": TOKENS * 2}},
    {"model": {"tp_size": 2, "tp_rank": 0}}, {"model": {"tp_size": 2, "tp_rank": 1}},
])  # fmt: skip
def test_what_makes_kv_another_makes_it_a_miss(open_store: Open, dirs: list[str], change: dict[str, object]) -> None:
    store = open_store(store={"dirs": dirs})
    hashes = kvlane.hash_tokens(range(16), TOKENS)
    keys = store.keys(hashes)
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        dump(store, cache, keys, range(4))
    store.close(30)
    other = open_store(**change)
    assert not set(other.keys(hashes)) & set(keys)
    with pytest.raises(
        kvlane.Mismatch, match=r"expected .*, found|another one"
    ):  # the directory holds blocks of another identity, which the error names
        open_store(**{"store": {"dirs": dirs}, **change})


def test_replicated_kv_is_found_by_each_rank(open_store: Open) -> None:
    keys = [open_store(model={"kv_heads": 1, "tp_size": 2, "tp_rank": r, "mla": True}).keys(bytes(32)) for r in (0, 1)]
    assert keys[0] == keys[1]


def test_short_name_of_a_type_is_the_same_type(open_store: Open) -> None:
    short, full = open_store(model={"dtype": "f32"}), open_store(model={"dtype": "float32"})
    assert short.keys(bytes(32)) == full.keys(bytes(32))
    kvlane.PagedCache(short, [arrays()], "lkp").close()


@pytest.mark.parametrize(("make", "reason"), [
    (lambda a: a.astype(np.float64), "elements are float64"),
    (lambda a: a[..., ::2], "not contiguous"),
    (lambda a: a.swapaxes(3, 4), "not contiguous"),
    (lambda a: a[:2], "4 planes"),
    (lambda a: a[..., :4].copy(), "bytes"),
    (lambda a: np.broadcast_to(a[:, :1], a.shape).copy()[:, :, ::-1], "strides are negative"),
    (lambda a: memoryview(b"12"), "not a tensor or array"),
    (lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape), "read-only"),
])  # fmt: skip
def test_wrong_memory_is_refused_with_the_reason(open_store: Open, make: Callable[[Any], object], reason: str) -> None:
    store = open_store()
    with pytest.raises(kvlane.Invalid, match=reason):
        kvlane.PagedCache(store, [make(arrays())], "lkp")


def test_overlapping_memory_is_refused(open_store: Open) -> None:
    store = open_store()
    kv = arrays()
    shared = np.lib.stride_tricks.as_strided(kv, kv.shape, (0, *kv.strides[1:]))
    with pytest.raises(kvlane.Invalid, match="overlap"):
        kvlane.PagedCache(store, shared, "lkp")


def test_registered_arrays_are_kept(open_store: Open) -> None:
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    store = open_store()
    kv: Any = arrays().view(Array)
    gone = weakref.ref(kv)
    cache = kvlane.PagedCache(store, kv, "lkp")
    del cache, kv
    gc.collect()
    assert gone() is not None
    store.close(30)
    gc.collect()
    assert gone() is None


def test_what_a_program_drops_stays_until_the_store_is_closed(open_store: Open) -> None:
    """The store keeps dropped arrays alive, since a load may still write to them."""
    import gc
    import weakref

    from kvlane import store as stores

    class Array(np.ndarray):
        pass

    before = set(stores._open)
    kv: Any = arrays().view(Array)
    buffer: Any = np.zeros(1 << 16, np.uint8).view(Array)
    gone = [weakref.ref(kv), weakref.ref(buffer)]

    def fails(kv: Any, buffer: Any) -> None:
        store = kvlane.Store(config())
        cache, region = kvlane.PagedCache(store, kv, "lkp"), kvlane.Region(store, buffer)
        kvlane.Stream(store).copy(region, region, 0, 4096, 4096)
        raise KeyError(store.load(cache, keys_of(store, 8), range(8)))

    with pytest.raises(KeyError):
        fails(kv, buffer)
    del kv, buffer
    gc.collect()
    assert all(r() is not None for r in gone)
    (store,) = stores._open - before
    store.close(30)
    assert store not in stores._open
    del store
    gc.collect()
    assert all(r() is None for r in gone)


def test_memory_whose_registration_could_not_be_undone_stays(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    def fails(*args: object) -> None:
        raise kvlane.Failed("register: no; the memory must stay until the engine is closed: a NIC does not answer")

    store = open_store()
    owners: list[Any] = [arrays().view(Array), np.zeros(100, np.uint8).view(Array)]
    gone = [weakref.ref(o) for o in owners]
    with monkeypatch.context() as patch:
        patch.setattr(store._lib, "call", fails)
        with pytest.raises(kvlane.Failed):
            kvlane.PagedCache(store, owners[0], "lkp")
        with pytest.raises(kvlane.Failed):
            kvlane.Region(store, owners[1])
    owners.clear()
    gc.collect()
    assert all(r() is not None for r in gone)
    store.close(30)
    gc.collect()
    assert all(r() is None for r in gone)


AT_EXIT = """if True:
    import os, sys
    import numpy as np
    import kvlane
    from kvlane import store as stores
    from conftest import config
    from test_store import arrays, keys_of

    class Array(np.ndarray):
        def __del__(self, write=os.write):
            write(1, b"freed ")

    class Store(kvlane.Store):
        def close(self, timeout=None):
            try:
                super().close(timeout)
                os.write(1, b"closed ")
            except kvlane.Error as e:
                os.write(1, type(e).__name__.encode() + b" ")
                raise

    how, kv = sys.argv[1], Array((3, 2, 32, 4, 2, 8), np.float32)
    store = Store(config())
    cache = kvlane.PagedCache(store, kv, "lkp")
    task = store.dump(cache, keys_of(store, 8), range(8), layerwise=how == "waits for layers")
    stores._LAST = 0.5 if how == "waits for layers" else 600
    del store, kv, cache, task
    if how == "forks" and os.fork():
        os.wait()
"""


@pytest.mark.parametrize(("how", "printed"), [
    ("ends", "freed closed"), ("waits for layers", "Timeout"), ("forks", "Forked freed closed"),
])  # fmt: skip
def test_the_end_of_a_program_closes_what_is_open(how: str, printed: str) -> None:
    """At exit the library closes open stores, within a time limit, and frees no memory to which a
    load may still write."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(pathlib.Path(__file__).parent)])}
    done = subprocess.run([sys.executable, "-c", AT_EXIT, how], capture_output=True, text=True, timeout=600, env=env, check=True)
    assert done.stdout.strip() == printed
    # The process that did not close a store in time reports it. A forked child does not report its
    # parent's store.
    assert ("was not closed in 0.5 s" in done.stderr) == (printed == "Timeout"), done.stderr
    assert bool(done.stderr) == (printed == "Timeout"), done.stderr


INTERRUPTED = """if True:
    import os, signal, sys
    import kvlane
    from conftest import config
    from test_store import arrays, keys_of

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    what, store = sys.argv[1], kvlane.Store(config())
    cache = kvlane.PagedCache(store, arrays(), "lkp")
    task = store.dump(cache, keys_of(store, 8), range(8), layerwise=True)  # which waits for its layers
    status, sent = kvlane._lib.Library.status, []

    def interrupted(self, name, *args):
        if name == "close_cache" and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return status(self, name, *args)

    kvlane._lib.Library.status = interrupted
    try:
        {"store": store, "cache": cache}[what].close()
    except KeyboardInterrupt:
        print("dump done:", task.done(), end=" ")
    for layer in range(3):
        task.submit_layer(layer)
    store.close()
    print("closed:", store.closed)
"""


@pytest.mark.parametrize("what", ["store", "cache"])
def test_ctrl_c_ends_a_close_that_waits(what: str) -> None:
    """Ctrl-C ends the wait at once, and close can be called again."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(pathlib.Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, what], capture_output=True, text=True, timeout=600, env=env, check=True
    )
    assert done.stdout == "dump done: False closed: True\n", done.stderr


def outcome(call: Callable[[], object]) -> type[BaseException] | None:
    """Returns the type of the error that the call raises."""
    try:
        call()
    except Exception as e:
        return type(e)
    return None


def test_what_has_ended_reports_it(open_store: Open) -> None:
    """Calls fail with Closed, or Expired for a lease, and not with an error about an invalid
    handle."""
    store = open_store()
    keys, kv = keys_of(store, 4), arrays()
    cache = kvlane.PagedCache(store, kv, "lkp")
    dump(store, cache, keys, range(4))
    lease, kept = store.lease(keys), store.lease(keys)
    lease.release()
    lease.release()
    with pytest.raises(kvlane.Expired, match="released"):
        store.load(cache, keys, range(4), lease)
    with pytest.raises(kvlane.Expired, match="released"):
        lease.worth(1)
    region, stream = kvlane.Region(store, np.zeros(64, np.uint8)), kvlane.Stream(store)
    stream.close()
    with pytest.raises(kvlane.Closed):
        stream.copy(region, region)
    region.close()
    with pytest.raises(kvlane.Closed):
        region.check()
    cache.close()
    with pytest.raises(kvlane.Closed):
        store.load(cache, keys, range(4))
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.lookup(keys), lambda: store.lease(keys), lambda: store.load(cache, keys, range(4)),
        lambda: store.dump(cache, keys, range(4)), lambda: store.prefetch(keys), store.stats, store.notes,
        lambda: store.keys(bytes(32)), lambda: kvlane.PagedCache(store, kv, "lkp"), lambda: kvlane.Stream(store),
    ]  # fmt: skip
    assert [outcome(call) for call in calls] == [kvlane.Closed] * len(calls)
    kept.release()


@pytest.mark.parametrize("name", ["tenant", "revision", "adapter"])
@pytest.mark.parametrize("text", ["caf\udce9", "\ud800"])
def test_text_that_is_no_text_is_refused(name: str, text: str) -> None:
    with pytest.raises(kvlane.Invalid, match="surrogate"):
        kvlane.Store(config(**{name: text}))


def test_the_zero_key_is_refused(open_store: Open) -> None:
    store, zero = open_store(), kvlane.Keys(bytes(32))
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        for call in (
            lambda: store.dump(cache, zero, [0]), lambda: store.load(cache, zero, [0]), lambda: store.lease(zero),
            lambda: store.lookup(zero), lambda: store.prefetch(zero), lambda: store.drop(zero), lambda: store.remove(zero),
        ):  # fmt: skip
            with pytest.raises(kvlane.Invalid, match="key is zero"):
                call()


def test_removed_and_pinned_blocks(open_store: Open, tmp_path: pathlib.Path) -> None:
    store = open_store(store={"cache_bytes": "64MiB", "dirs": tmp_path / "a"})
    keys = keys_of(store, 4)
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        dump(store, cache, keys, range(4))
        with store.lease(keys[:1]), pytest.raises(kvlane.Busy, match="in use"):
            store.remove(keys[:2])
        assert store.lookup(keys) == bytes((1, 0, 1, 1))
        store.pin(keys[2:3])
        with pytest.raises(kvlane.Busy, match="pinned"):
            store.remove(keys)
        why = store.why(keys)
        assert [w["text"].split(" in ")[0] for w in why[2:3]] == ["is stored"], why
        assert why[1]["tiers"][1]["removed"]["cause"] == "request", why
        with pytest.raises(kvlane.NotFound):
            store.pin(keys[:1])
        store.unpin(keys)
        assert store.remove(keys) == 1
        assert store.lookup(keys) == bytes(4)
        assert store.remove(keys[:0]) == 0
        assert store.why(keys[:0]) == []
        dump(store, cache, keys[:1], [0])
        assert store.lookup(keys[:1]) == b"\x01"
    with pytest.raises(kvlane.NotSupported):
        open_store().pin(keys)


def test_events(open_store: Open, tmp_path: pathlib.Path) -> None:
    store = open_store(store={"cache_bytes": "64MiB", "dirs": tmp_path / "a"})
    assert [e.change for e in store.events()] == [LOST], "the recording begins"
    keys = keys_of(store, 1)
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        dump(store, cache, keys, [0])
        assert store.events() == [Event(STORED, "cache", keys.raw), Event(STORED, "file", keys.raw)]
        store.remove(keys)
    assert set(store.events()) == {Event(REMOVED, "cache", keys.raw), Event(REMOVED, "file", keys.raw)}
    assert store.events() == []


def test_sizes_and_directories_as_people_write_them(open_store: Open, tmp_path: pathlib.Path) -> None:
    for n, store in enumerate(
        [{"cache_bytes": "64MiB"}, {"cache_bytes": 64e6, "dirs": tmp_path / "a"}, {"dirs": str(tmp_path / "b")}]
    ):
        opened = open_store(store=store)
        with kvlane.PagedCache(opened, arrays(), "lkp") as cache:
            dump(opened, cache, keys_of(opened, 2, n), range(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    for bad in ({"cache_bytes": [1]}, {"dirs": 3}, {"cache_bytes": object()}, {"cache_bytes": float("nan")}):
        with pytest.raises(kvlane.Invalid) as e:
            open_store(store=bad)
        assert not {"Go ", "unmarshal", "int64"} & set(str(e.value).split()), e.value


def test_numbers_beyond_the_library_are_invalid(open_store: Open) -> None:
    """Without this check ctypes would truncate the numbers, or raise errors that are not a
    kvlane.Error."""
    store = open_store()
    keys = keys_of(store, 2)
    with store.lease(keys) as lease, kvlane.PagedCache(store, arrays(), "lkp") as cache:
        task = store.load(cache, Keys(), [], layerwise=True)
        calls: list[Callable[[], object]] = [
            lambda: store.keys(bytes(32), hash_bytes=0), lambda: store.keys(bytes(32), hash_bytes=-1),
            lambda: store.keys(bytes(32), group=1 << 32), lambda: store.lease(keys, ttl=float("inf")),
            lambda: store.lease(keys, ttl=float("nan")), lambda: store.lease(keys, ttl=-1),
            lambda: store.token_keys([1 << 63] * TOKENS, TOKENS), lambda: store.token_keys([1.5] * TOKENS, TOKENS),
            lambda: store.token_keys([1] * TOKENS, (1 << 64) + TOKENS), lambda: lease.worth(1 << 63),
            lambda: lease.worth((1 << 64) + 1), lambda: store.report_computed(1 << 63, 1),
            lambda: store.lookup(keys, float("nan")),
            lambda: task.wait_layer(1 << 32), lambda: task.wait(float("nan")),
        ]  # fmt: skip
        assert [outcome(call) for call in calls] == [kvlane.Invalid] * len(calls)
        task.result(float("inf"))
        assert store.lookup(keys, float("inf")) == bytes(2)
        store.lease(keys, ttl=1e-9).release()


def test_what_the_library_owns_is_not_copied(open_store: Open) -> None:
    """A copied lease would release the pins of the original."""
    store = open_store()
    with store.lease(keys_of(store, 1)) as lease, kvlane.PagedCache(store, arrays(), "lkp") as cache:
        for thing in (store, lease, cache, store.prefetch(Keys())):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    call(thing)


def test_the_configuration_reports_every_problem() -> None:
    with pytest.raises(kvlane.Invalid, match=r"(?s)(colour|layers).*(colour|layers)"):
        kvlane.Store(config(colour="red", model={"layers": -1}))


def test_numbers_that_do_not_agree(open_store: Open) -> None:
    store = open_store()
    keys = keys_of(store, 2)
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        for pages in ([1], [1, 2, 3], [-1, 2], ["a", "b"]):
            with pytest.raises(kvlane.Invalid):
                store.dump(cache, keys, pages)
        with pytest.raises(kvlane.Invalid):
            store.dump(cache, keys, [0, PAGES]).result(30)


def test_closed_things_say_so(open_store: Open) -> None:
    store = open_store()
    keys = keys_of(store, 1)
    cache = kvlane.PagedCache(store, arrays(), "lkp")
    lease = store.lease(keys)
    lease.release()
    lease.release()
    cache.close(30)
    cache.close(30)
    with pytest.raises(kvlane.Error):
        store.dump(cache, keys, [0])
    store.close(30)
    store.close(30)
    with pytest.raises(kvlane.Error):
        store.lookup(keys)


def test_asyncio(open_store: Open) -> None:
    store = open_store()
    kv = arrays()

    async def request(cache: kvlane.PagedCache, i: int) -> None:
        keys = keys_of(store, 4, salt=i)
        pages = range(4 * i, 4 * i + 4)
        await store.dump(cache, keys, pages)
        await store.load(cache, keys, pages)
        with pytest.raises(kvlane.NotFound):
            await store.load(cache, keys_of(store, 1, salt=1000 + i), [4 * i])

    async def main() -> None:
        before = kv.copy()
        with kvlane.PagedCache(store, kv, "lkp") as cache:
            await asyncio.wait_for(asyncio.gather(*(request(cache, i) for i in range(8))), 60)
        np.testing.assert_array_equal(kv, before)

    asyncio.run(main())


def test_awaiting_takes_no_thread_from_others(open_store: Open) -> None:
    """More dumps wait for their layers than the executor has threads; awaiting them must not block
    another await."""
    store = open_store()

    async def main(cache: kvlane.PagedCache) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        dumps = [store.dump(cache, keys_of(store, 1, salt=i), [i], layerwise=True) for i in range(3)]

        async def ended(task: kvlane.Task) -> None:
            await task

        waits = [asyncio.create_task(ended(d)) for d in dumps]
        given_up = asyncio.create_task(ended(dumps[0]))
        await asyncio.sleep(0.05)
        given_up.cancel()
        try:
            await asyncio.wait_for(ended(store.dump(cache, keys_of(store, 4, salt=9), range(4, 8))), 20)
            assert await asyncio.to_thread(lambda: 7) == 7
        finally:
            for d in dumps:
                for layer in range(LAYERS):
                    d.submit_layer(layer)
        await asyncio.gather(*waits)
        assert given_up.cancelled()

    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        asyncio.run(asyncio.wait_for(main(cache), 60))


def test_a_task_that_was_awaited_is_let_go(open_store: Open) -> None:
    import gc
    import weakref

    store = open_store()

    async def main(cache: kvlane.PagedCache) -> weakref.ref[kvlane.Task]:
        task = store.dump(cache, keys_of(store, 8), range(8))
        await task
        return weakref.ref(task)

    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        gone, end = asyncio.run(main(cache)), time.monotonic() + 600
        while gone() is not None and time.monotonic() < end:
            gc.collect()
        assert gone() is None


def test_threads(open_store: Open) -> None:
    store = open_store()
    kv = arrays(64)
    before = kv.copy()
    wrong: list[BaseException] = []

    def work(i: int, cache: kvlane.PagedCache) -> None:
        try:
            for number in range(10):
                keys = keys_of(store, 8, salt=100 * i + number)
                dump(store, cache, keys, range(8 * i, 8 * i + 8))
                with store.lease(keys) as lease:
                    assert lease.found == 8
                    store.load(cache, keys, range(8 * i, 8 * i + 8), lease).result(30)
                with pytest.raises(kvlane.Invalid, match="keys and"):
                    store.load(cache, keys, [0])
        except BaseException as e:
            wrong.append(e)

    with kvlane.PagedCache(store, kv, "lkp") as cache:
        threads = [threading.Thread(target=work, args=(i, cache)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert not wrong
    np.testing.assert_array_equal(kv, before)


def test_flipped_bit_is_a_miss(open_store: Open, dirs: list[str]) -> None:
    kv = arrays()
    store = open_store(store={"dirs": dirs})
    keys = keys_of(store, 3)
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        dump(store, cache, keys, range(3))
    store.close(30)
    (file,) = [p for p in pathlib.Path(dirs[0]).rglob("*") if p.name.startswith(keys[1].hex()[:16])]
    image = bytearray(file.read_bytes())
    image[5000] ^= 4
    file.write_bytes(image)

    store = open_store(store={"dirs": dirs})
    back = np.zeros_like(kv)
    with kvlane.PagedCache(store, back, "lkp") as cache:
        task = store.load(cache, keys, range(3))
        with pytest.raises(kvlane.Corrupt):
            task.result(30)
        assert [r.status for r in task.results()] == [kvlane.Status.OK, kvlane.Status.CORRUPT, kvlane.Status.OK]
        np.testing.assert_array_equal(back[:, :, ::2][:, :, :2], kv[:, :, ::2][:, :, :2])
        assert store.lookup(keys) == b"\1\0\1"


def test_hybrid_models_have_groups(open_store: Open) -> None:
    geometry = {k: v for k, v in MODEL.items() if k != "layers"}
    wide = {**geometry, "head_size": 2 * SIZE}
    groups = [{"name": "a", "layers": [0, 2], "geometry": geometry}, {"name": "b", "layers": [1], "geometry": wide}]
    with kvlane.Store({**{k: v for k, v in config().items() if k != "model"}, "groups": groups}) as store:
        a = np.random.default_rng(1).standard_normal((2, 2, PAGES, TOKENS, HEADS, SIZE)).astype(np.float32)
        b = np.random.default_rng(2).standard_normal((2, PAGES, TOKENS, HEADS, 2 * SIZE)).astype(np.float32)
        before = a.copy(), b.copy()
        hashes = kvlane.hash_tokens(range(8), TOKENS)
        keys = store.keys(hashes, 0) + store.keys(hashes, 1)
        with kvlane.PagedCache(store, groups=[kvlane.Group(a, "lkp"), kvlane.Group(b, "kp")]) as cache:
            dump(store, cache, keys, [0, 1, 0, 1])
            store.load(cache, keys, [5, 6, 8, 9]).result(30)
        np.testing.assert_array_equal(a[:, :, 5:7], before[0][:, :, :2])
        np.testing.assert_array_equal(b[:, 8:10], before[1][:, :2])


def test_statistics_and_notes(open_store: Open) -> None:
    store = open_store()
    assert isinstance(store.stats(), dict)
    assert isinstance(store.notes(), list)


def tiers() -> list[tuple[str, str]]:
    """Returns each durable tier with the setting of its place, from docs/settings.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| `store\.(\w+)` \| \[", page, re.MULTILINE)
    return [row for row in rows if row[0] != "cache"]


def test_every_tier_is_accepted(open_store: Open, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # credentials are not looked for in the network
    assert len(tiers()) > 1
    for name, key in tiers():
        places = {"dirs": [str(tmp_path / name)], "remote": "127.0.0.1:1", "object": "s3://bucket/prefix"}
        place = places.get(key, str(tmp_path / name))
        more = {"object_endpoint": "http://127.0.0.1:1"} if key == "object" else {}
        store = open_store(store={"pipeline": f"cache|{name}", key: place, **more})
        with kvlane.PagedCache(store, arrays(), "lkp") as cache:
            store.dump(cache, keys_of(store, 2), range(2))
        with pytest.raises(kvlane.Invalid, match=f"has no {name} tier"):
            open_store(store={"pipeline": "cache", key: place})


def test_tiers_that_are_left_out(open_store: Open, tmp_path: pathlib.Path) -> None:
    files = tmp_path / "files"
    store = open_store(store={"dirs": [str(files)], "log_dir": str(tmp_path / "log")})
    with kvlane.PagedCache(store, arrays(), "lkp") as cache:
        keys = keys_of(store, 4)
        task = store.dump(cache, keys[:2], range(2))
        task.result(30)
        assert task.left_out() == []
        shutil.rmtree(files)
        files.touch()
        task = store.dump(cache, keys[2:], range(2))
        task.result(30)
        [left] = task.left_out()
        assert (left.tier, left.blocks) == ("file", 2)
        assert left.cause
        writes = Writes(logging.getLogger("kvlane"))
        writes.add(task)
        writes.finish(30)
        assert writes.counts == {"left out of file": 2}
        files.unlink()


def test_a_forked_child_fails_at_once(open_store: Open) -> None:
    store = open_store()
    keys = keys_of(store, 1)
    assert in_child(lambda: store.lookup(keys)) == FORKED
    assert store.lookup(keys) == b"\0"


@pytest.mark.parametrize("what", ["register", "load"])
def test_a_child_forked_during_a_call_fails_at_once(open_store: Open, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The fork happens while another thread registers tensors or loads the library."""
    store, entered, leave = open_store(), threading.Event(), threading.Event()
    keys, register, load = keys_of(store, 1), store._lib.call, _lib.Library

    def stay() -> None:
        if threading.current_thread() is thread:
            entered.set()
            leave.wait(60)

    def slow_load(path: str) -> _lib.Library:
        stay()
        return load(path)

    def slow_register(*args: Any) -> None:
        stay()
        register(*args)

    if what == "load":
        monkeypatch.setattr(_lib, "_library", None)
        monkeypatch.setattr(_lib, "Library", slow_load)
        thread = threading.Thread(target=_lib.library)
    else:
        monkeypatch.setattr(store._lib, "call", slow_register)
        thread = threading.Thread(target=kvlane.PagedCache, args=(store, arrays(), "lkp"))
    thread.start()
    try:
        assert entered.wait(30)
        assert in_child(lambda: kvlane.PagedCache(store, arrays(), "lkp")) == FORKED
        assert in_child(lambda: kvlane.Stream(store)) == FORKED
        assert in_child(lambda: store.prefetch(keys)) == FORKED
        assert in_child(store.close) == FORKED
    finally:
        leave.set()
        thread.join(30)


def test_what_is_not_there_is_not_loaded() -> None:
    code = """if True:
        import kvlane, sys
        print("numpy" in sys.modules, "torch" in sys.modules)
        try:
            kvlane.hash_tokens([1], 1)
        except kvlane.NotSupported as e:
            print(e)
    """
    env = {**os.environ, "KVLANE_LIBRARY": "/nonexistent/libkvlane.so"}
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=600)
    assert out.startswith("False False\nload /nonexistent/libkvlane.so")
