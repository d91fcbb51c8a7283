"""Tests KVLaneCache with tiny random models on the CPU: tokens and logits equal those without a
store, and any difference that affects KV is a miss."""

from __future__ import annotations

import copy
import cProfile
import itertools
import os
import pathlib
import pstats
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kvlane

torch = pytest.importorskip("torch")  # conftest.py fails if KVLANE_REQUIRE names torch
pytestmark = pytest.mark.torch

import tiny  # noqa: E402
from conftest import FORKED, in_child  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402
from transformers.cache_utils import DynamicLayer  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

from kvlane import _weights  # noqa: E402
from kvlane.task import Load  # noqa: E402
from kvlane.transformers import CACHE_OPTION, KVLaneCache  # noqa: E402

STORE = {"cache_bytes": 32 << 20}
GREEDY = {"max_new_tokens": 12, "do_sample": False}
Make = Callable[..., KVLaneCache]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[KVLaneCache] = []

    def make_it(model: Any, store: dict[str, Any] | None = None, **more: Any) -> KVLaneCache:
        made.append(KVLaneCache(model, {**STORE, **(store or {})}, block_tokens=more.pop("block_tokens", 8), **more))
        return made[-1]

    yield make_it
    for cache in made:
        cache.close(30)


def prompt(tokens: int = 80, batch: int = 1, seed: int = 5) -> Any:
    return torch.randint(3, 128, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def logits(model: Any, ids: Any, past: Any) -> Any:
    with torch.no_grad():
        return model(ids[:, int(past.get_seq_length()) :], **{CACHE_OPTION: past}).logits


def kept(model: Any, ids: Any, tokens: int) -> Any:
    """Returns a cache of transformers' own that holds the first tokens of ids."""
    past = DynamicCache()
    with torch.no_grad():
        model(ids[:, :tokens], **{CACHE_OPTION: past})
    return past


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_output_is_equal(make: Make, kind: str, dtype: str) -> None:
    """The second run loads its prefix from the store. Its tokens equal those without a store, and
    its logits equal, bit for bit, those with the same prefix kept in memory."""
    model = tiny.model(kind, dtype=dtype)
    ids = prompt()
    want = model.generate(ids, **GREEDY)
    cache = make(model)
    # Without a prefix the computation is the same as without a store. With one, the reference is
    # transformers' own cache with that prefix.
    assert torch.equal(cache.generate(ids, **GREEDY), want)
    past = cache.load(ids)
    assert past.get_seq_length() == 72  # of 80 tokens, since at least one must be left to compute
    own = kept(model, ids, 80)
    for layer, (loaded, computed) in enumerate(zip(past.layers, own.layers, strict=True)):
        if computed.is_initialized:
            assert torch.equal(loaded.keys, computed.keys[:, :, :72]), layer
            assert torch.equal(loaded.values, computed.values[:, :, :72]), layer
            assert loaded.keys.dtype == computed.keys.dtype == model.dtype
    own.crop(-8)
    assert torch.equal(logits(model, ids, cache.load(ids)), logits(model, ids, own))
    own = kept(model, ids, 80)
    own.crop(-8)
    again = cache.generate(ids, **GREEDY)
    assert torch.equal(again, model.generate(ids, **{CACHE_OPTION: own}, **GREEDY))
    if dtype == "float32":  # in float32 the best token is far enough ahead to be unaffected by the order of summation
        assert torch.equal(again, want)
    assert cache.counts["tokens_loaded"] == 3 * 72


def test_a_full_disk_is_no_miss(make: Make, small_disk: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks that cannot be written stay in memory. They are counted, and logged at a limited
    rate."""
    (small_disk / "filler").write_bytes(bytes(5 << 20))
    model = tiny.model("llama")
    cache = make(model, {"dirs": small_disk / "d", "admission": "always"})
    ids = prompt()
    for seed in range(1000):
        ids = prompt(seed=seed)
        assert cache.save(ids, kept(model, ids, 80)) == 10
        if cache.not_written:
            break
    cache._writes.finish(60)
    assert cache.not_written["NO_SPACE"] > 0
    assert int(cache.load(ids).get_seq_length()) == 72
    assert cache.counts["failed_no_space"] == 0
    assert len(caplog.records) == 1
    assert cache.save(prompt(seed=2000), kept(model, prompt(seed=2000), 80), durable=True) < 10, "what is to be durable is not"


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_layers_arrive_while_the_model_computes(make: Make, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model waits for each layer when it reaches it, and for the results at the end. Tokens
    and KV are the same."""
    model, ids = tiny.model(kind), torch.cat([prompt(), prompt(seed=1)])
    cache = make(model, layerwise=True)
    want = cache.generate(ids, **GREEDY)
    events: list[Any] = []

    def noted(name: str) -> None:
        original = getattr(Load, name)

        def note(task: Any, *layer: int) -> None:
            events.append(layer)
            original(task, *layer)

        monkeypatch.setattr(Load, name, note)

    noted("wait_layer")
    noted("result")
    assert torch.equal(cache.generate(ids, **GREEDY), want)
    layers = range(model.config.num_hidden_layers)
    assert events == [(layer,) for layer in layers for _ in ids] + [(), ()]
    past = cache.load(ids)
    assert past.get_seq_length() == 72
    own = kept(model, ids, 80)
    for loaded, computed in zip(past.layers, own.layers, strict=True):
        assert torch.equal(loaded.keys, computed.keys[:, :, :72])
        assert torch.equal(loaded.values, computed.values[:, :, :72])
        assert type(loaded) is DynamicLayer
    assert cache.counts["tokens_loaded"] == 2 * 2 * 72
    assert not cache.store._caches  # nothing is registered any longer


def test_layers_that_did_not_arrive_are_computed(make: Make, tmp_path: pathlib.Path) -> None:
    """Damage on disk is detected only after the model has used a layer. Then generate() starts
    again, and other computations raise an error."""
    model, ids, store = tiny.model("llama"), prompt(), {"dirs": [str(tmp_path)]}
    want = model.generate(ids, **GREEDY)
    first = make(model, store)
    first.generate(ids, **GREEDY)
    first.close(30)
    files = [p for p in tmp_path.rglob("*") if p.is_file() and len(p.name) == 64]

    def flip() -> None:
        for file in files[::2]:
            image = bytearray(file.read_bytes())
            image[-1 - len(image) // 3] ^= 16
            file.write_bytes(image)

    flip()
    second = make(model, store, layerwise=True)
    assert torch.equal(second.generate(ids, **GREEDY), want)
    assert second.counts["failed_corrupt"] >= 1
    assert second.counts["tokens_loaded"] < 72
    second.close(30)
    flip()
    third = make(model, store, layerwise=True)
    with pytest.raises(kvlane.Corrupt):
        logits(model, ids, third.load(ids))
    assert not third.store._caches
    assert torch.equal(third.generate(ids, **GREEDY), want)
    third.close(30)
    flip()
    with pytest.raises(kvlane.Corrupt):
        make(model, store, layerwise=True).load(ids).layers[1].keys.sum()


def test_a_streamer_gets_the_prompt_once(make: Make, tmp_path: pathlib.Path) -> None:
    """A streamer cannot take tokens back, so with one a load completes before generation and
    nothing starts again."""
    model, ids, store = tiny.model("llama"), prompt(), {"dirs": [str(tmp_path)]}
    first = make(model, store)
    want = first.generate(ids, **GREEDY)
    first.close(30)
    for file in tmp_path.rglob("*"):
        if file.is_file() and len(file.name) == 64:
            image = bytearray(file.read_bytes())
            image[-1] ^= 16
            file.write_bytes(image)

    class Streamer(BaseStreamer):  # type: ignore[misc] # which mypy does not see
        def __init__(self) -> None:
            self.told: list[int] = []

        def put(self, value: Any) -> None:
            self.told += value.flatten().tolist()

        def end(self) -> None:
            self.told.append(-1)

    streamer, cache = Streamer(), make(model, store, layerwise=True)
    assert torch.equal(cache.generate(ids, streamer=streamer, **GREEDY), want)
    assert streamer.told == [*want[0].tolist(), -1]
    assert cache.counts["failed_corrupt"] == 1


def test_a_load_without_a_wait_is_ended_by_the_next(make: Make) -> None:
    model, ids = tiny.model("llama"), prompt()
    cache = make(model, layerwise=True)
    cache.generate(ids, **GREEDY)
    pasts = [cache.load(ids) for _ in range(3)]
    assert len(cache.store._caches) == 1
    for past in pasts:
        own = kept(model, ids, 80)
        own.crop(-8)
        assert torch.equal(logits(model, ids, past), logits(model, ids, own))
    copied = copy.deepcopy(cache.load(ids))
    own = kept(model, ids, 80)
    own.crop(-8)
    assert torch.equal(logits(model, ids, copied), logits(model, ids, own))
    past = cache.load(ids)
    past.reset()
    assert past.get_seq_length() == 0
    cache.load(ids)
    cache.close(30)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_static_caches(make: Make, kind: str) -> None:
    model = tiny.model(kind)
    ids = prompt(20)  # the prompt fits in the sliding windows
    want = model.generate(
        ids, **{CACHE_OPTION: StaticCache(config=model.config, max_cache_len=64)}, max_new_tokens=2, do_sample=False
    )
    cache = make(model)
    past = cache.load(ids, StaticCache(config=model.config, max_cache_len=64))
    out = model.generate(ids, **{CACHE_OPTION: past}, max_new_tokens=2, do_sample=False)
    assert torch.equal(out, want)
    assert cache.save(out, past) == 2
    past = cache.load(ids, StaticCache(config=model.config, max_cache_len=64))
    assert int(past.get_seq_length()) == 16
    assert torch.equal(model.generate(ids, **{CACHE_OPTION: past}, max_new_tokens=2, do_sample=False), want)


@pytest.mark.parametrize("make_past", [lambda c: DynamicCache(config=c), lambda c: StaticCache(config=c, max_cache_len=128)])
def test_what_a_window_dropped_is_not_stored(make: Make, make_past: Callable[[Any], Any]) -> None:
    model = tiny.model("mistral")
    ids = prompt()
    cache = make(model)
    past = make_past(model.config)
    out = model.generate(ids, **{CACHE_OPTION: past}, **GREEDY)
    with pytest.raises(kvlane.NotSupported, match="keeps the last"):
        cache.save(out, past)
    # KV stored from a cache that keeps all tokens is loaded into one that keeps only its window.
    cache.generate(ids, **GREEDY)
    past = cache.load(ids, make_past(model.config))
    assert int(past.get_seq_length()) == 72
    assert torch.equal(model.generate(ids, **{CACHE_OPTION: past}, **GREEDY), out)


def test_batches(make: Make) -> None:
    model = tiny.model("llama")
    ids = prompt(batch=3)
    ids[1, 40:] = prompt(seed=6)[0, 40:]
    want = model.generate(ids, **GREEDY)
    cache = make(model)
    cache.generate(ids[:1], **GREEDY)
    assert cache.load(ids).get_seq_length() == 0  # rows 1 and 2 share a shorter prefix
    assert torch.equal(cache.generate(ids, **GREEDY), want)
    assert cache.load(ids).get_seq_length() == 72
    assert torch.equal(cache.generate(ids, **GREEDY), want)
    other = ids.clone()
    other[2, 50] = 3
    assert cache.load(other).get_seq_length() == 48


def test_caches_of_any_strides_are_stored_as_they_lie(make: Make) -> None:
    """The tensors are views of longer tensors or of rows of a batch, or their tokens are not
    contiguous."""
    model = tiny.model("llama")
    ids = prompt(200, batch=2)
    long, cache = kept(model, ids, 200), make(model)
    long.crop(-83)
    assert not long.layers[0].keys.is_contiguous()
    assert cache.save(ids[:, :117], long) == 2 * 14
    for layer in long.layers:
        layer.keys = layer.keys.transpose(2, 3).contiguous().transpose(2, 3)
    other = make(model, tenant="another")
    assert other.save(ids[:, :117], long) == 2 * 14
    for each, store in itertools.product((ids, ids[1:]), (cache, other)):
        past = store.load(each)
        assert past.get_seq_length() == 112
        own = kept(model, each, 200)
        own.crop(-88)
        for loaded, computed in zip(past.layers, own.layers, strict=True):
            assert torch.equal(loaded.keys, computed.keys)
            assert torch.equal(loaded.values, computed.values)
    assert cache.save(ids[:, :117], long) == 0


def test_conversations_grow(make: Make) -> None:
    model = tiny.model("qwen3")
    cache = make(model)
    ids = prompt(33)
    for number in range(4):
        want = model.generate(ids, **GREEDY)
        assert torch.equal(cache.generate(ids, **GREEDY), want), number
        ids = torch.cat([want, prompt(9, seed=number)], dim=1)
        assert cache.load(ids).get_seq_length() >= (want.shape[1] - 1) // 8 * 8


def test_padding_is_part_of_no_prefix(make: Make) -> None:
    """generate() masks the padding tokens of a prompt by default, but not those that it generates."""
    model = tiny.model("llama", pad_token_id=7, eos_token_id=9)
    cache = make(model)
    ids = prompt(40)
    ids[ids == 7] = ids[ids == 9] = 10
    cache.save(ids, kept(model, ids, 40))
    ids[0, 20] = 7
    with pytest.raises(kvlane.NotSupported, match="padding"):
        cache.generate(ids, **GREEDY)
    past = cache.load(ids)
    assert past.get_seq_length() == 16
    want = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, **{CACHE_OPTION: past}, **GREEDY), want)
    assert cache.save(want, past) == 0
    mask = torch.ones_like(ids)
    want = model.generate(ids, attention_mask=mask, **GREEDY)
    for _ in range(2):
        assert torch.equal(cache.generate(ids, attention_mask=mask, **GREEDY), want)
    ids[0, 0] = 7
    assert cache.load(ids).get_seq_length() == 0


def test_restart(make: Make, tmp_path: pathlib.Path) -> None:
    model = tiny.model("llama")
    ids = prompt()
    store = {"dirs": [str(tmp_path)]}
    first = make(model, store)
    want = first.generate(ids, **GREEDY)
    first.close(30)
    second = make(model, store)
    assert second.load(ids).get_seq_length() == 72
    assert torch.equal(second.generate(ids, **GREEDY), want)


def test_flipped_bits_are_computed_anew(make: Make, tmp_path: pathlib.Path) -> None:
    model = tiny.model("llama")
    ids = prompt()
    store = {"dirs": [str(tmp_path)]}
    first = make(model, store)
    want = first.generate(ids, **GREEDY)
    first.close(30)
    files = [p for p in tmp_path.rglob("*") if p.is_file() and len(p.name) == 64]
    assert len(files) >= 10
    for file in files[::2]:
        image = bytearray(file.read_bytes())
        image[-1 - len(image) // 3] ^= 16
        file.write_bytes(image)
    second = make(model, store)
    assert torch.equal(second.generate(ids, **GREEDY), want)
    assert second.counts["failed_corrupt"] >= 1
    assert second.load(ids).get_seq_length() == 72  # the damaged block has been stored again


@pytest.mark.parametrize("change", [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    {"rms_norm_eps": 1e-4}, {"hidden_act": "gelu"}, {"attention_bias": True},
])  # fmt: skip
def test_other_configurations_do_not_hit(make: Make, tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    ids, store = prompt(), {"dirs": [str(tmp_path)]}
    first = make(tiny.model("llama"), store, weights="the same")
    first.generate(ids, **GREEDY)
    first.close(30)
    assert make(tiny.model("llama", **change), store, weights="the same").load(ids).get_seq_length() == 0
    assert make(tiny.model("llama"), store, weights="the same").load(ids).get_seq_length() == 72


def test_other_weights_tenants_and_types_do_not_hit(make: Make, tmp_path: pathlib.Path) -> None:
    ids, store = prompt(), {"dirs": [str(tmp_path)]}
    first = make(tiny.model("llama"), store)
    first.generate(ids, **GREEDY)
    first.close(30)
    for other in (
        make(tiny.model("llama", seed=1), store),
        make(tiny.model("llama"), store, tenant="another"),
        make(tiny.model("llama", dtype="bfloat16"), store),
        make(tiny.model("llama"), store, block_tokens=16),
        make(tiny.model("llama"), store, weights="given"),
    ):
        assert other.load(ids).get_seq_length() == 0
    one = tiny.model("llama")
    with torch.no_grad():
        one.model.layers[2].self_attn.k_proj.weight[3, 5] += 1e-3
    assert make(one, store).load(ids).get_seq_length() == 0
    assert make(tiny.model("llama"), store).load(ids).get_seq_length() == 72


@pytest.mark.parametrize("change", [
    lambda m: m.lm_head.weight.mul_(2),
    lambda m: m.model.norm.weight.data.mul_(2),
    lambda m: m.model.embed_tokens.weight.data.add_(1e-3),
    lambda m: m.model.layers[1].self_attn.k_proj.weight.data.copy_(torch.randn(32, 64)),
    lambda m: m.model.layers[2].mlp.up_proj.weight.data.lerp_(torch.zeros(96, 64, dtype=m.dtype), 1e-2),
    lambda m: m.model.rotary_emb.inv_freq.mul_(0.5),
    lambda m: m.model.rotary_emb.inv_freq.data.mul_(0.5),
    lambda m: m.model.rotary_emb.register_buffer("inv_freq", m.model.rotary_emb.inv_freq.clone()),
    lambda m: m.set_attn_implementation("eager"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_changed_weights_are_refused(make: Make, change: Callable[[Any], Any], dtype: str) -> None:
    model = tiny.model("llama", dtype=dtype)
    cache = make(model)
    ids = prompt()
    cache.generate(ids, **GREEDY)
    with torch.no_grad():
        change(model)
    with pytest.raises(kvlane.Invalid, match="changed"):
        cache.load(ids)
    with pytest.raises(kvlane.Invalid, match="changed"):
        cache.save(ids, DynamicCache())


def test_weights_are_looked_at_while_blocks_are_loaded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are checked after the loads of all rows are submitted. If they have changed,
    none of the loaded KV is used."""
    model = tiny.model("llama")
    cache = make(model)
    rows = torch.cat([prompt(), prompt(seed=1)])
    cache.save(rows, kept(model, rows, 80))
    submitted, load = [], cache.store.load

    def submit(*args: Any, **how: Any) -> Any:
        submitted.append(load(*args, **how))
        if len(submitted) == len(rows):
            model.lm_head.weight.data.mul_(2)
        return submitted[-1]

    monkeypatch.setattr(cache.store, "load", submit)
    past = DynamicCache()
    with pytest.raises(kvlane.Invalid, match="changed"):
        cache.load(rows, past)
    assert [task.done() for task in submitted] == [True, True]
    assert past.get_seq_length() == 0
    assert cache.counts["tokens_loaded"] == 0


def test_a_cache_follows_changed_weights(make: Make) -> None:
    cache = make(tiny.model("llama"))
    cache.load(prompt())
    cache.weights_changed()
    with pytest.raises(kvlane.Invalid, match="changed"):
        cache.load(prompt())


def test_a_model_in_training_is_refused(make: Make) -> None:
    model = tiny.model("llama")
    cache = make(model)
    model.train()
    with pytest.raises(kvlane.Invalid, match="training"):
        cache.load(prompt())


@pytest.mark.parametrize("host", ["cpu", "none"])
def test_samples_of_tensors_are_read_wherever_they_lie(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Samples are read from tensors in host memory and on other devices, with any strides, without
    keeping the tensors."""
    monkeypatch.setattr(_weights, "_HOST", host)
    base = torch.arange(4096, dtype=torch.float32)
    tensors = [
        base[:1], base[5:40], base.reshape(64, 64).T, base.reshape(64, 64)[::2, 1:9:3], base[3:4].expand(7), base[:0],
        base.to(torch.bfloat16), torch.tensor(3), torch.nn.Parameter(base.clone()), torch.empty(3, device="meta"),
        torch.frombuffer(bytearray(67), dtype=torch.float16, offset=1),
    ]  # fmt: skip
    samples = _weights._Samples(tensors)
    before = samples.read(tensors)
    assert before == samples.read(tensors)
    for t in tensors:
        if t.numel() and t.device.type == "cpu":
            t.data.as_strided((1,), (1,)).add_(3)
            after = samples.read(tensors)
            assert after != before
            before = after
    gone = [weakref.ref(t) for t in tensors]
    del t, tensors
    assert not any(r() is not None for r in gone)


def test_a_child_forked_during_a_call_fails_at_once(make: Make) -> None:
    cache, ids = make(tiny.model("llama")), prompt(20)
    with cache._lock:  # as during a call in another thread
        assert in_child(lambda: cache.load(ids)) == FORKED
        assert in_child(lambda: cache.save(ids, DynamicCache())) == FORKED


@pytest.mark.parametrize(("kind", "change", "reason"), [
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, "how long the sequence"),
    ("phi3", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0,
        "original_max_position_embeddings": 128,
    }}, "how long the sequence"),
    ("qwen3next", {}, "linear_attention"),
    ("llama4", {}, "chunked_attention"),
    ("t5", {}, "encoder-decoder"),
])  # fmt: skip
def test_what_cannot_be_exact_is_refused(kind: str, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(kvlane.NotSupported, match=reason):
        KVLaneCache(tiny.model(kind, **change), STORE)


def test_calls_that_are_refused(make: Make) -> None:
    model = tiny.model("llama")
    cache = make(model)
    ids = prompt(20)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    for options in (
        {"use_cache": False},
        {"num_beams": 2}, {"num_return_sequences": 2}, {"attention_mask": mask}, {"inputs_embeds": torch.zeros(1, 20, 64)},
        {"past_key_values": DynamicCache()}, {"cache": DynamicCache()}, {"position_ids": torch.arange(20)[None]},
    ):  # fmt: skip
        with pytest.raises(kvlane.NotSupported):
            cache.generate(ids, **options)
    past = kept(model, ids, 20)
    with pytest.raises(kvlane.Invalid, match="not empty"):
        cache.load(ids, past)
    with pytest.raises(kvlane.Invalid, match="holds 20 tokens"):
        cache.save(ids[:, :10], past)
    with pytest.raises(kvlane.Mismatch):
        cache.save(prompt(20, batch=2), past)
    other = kept(model, ids, 20)
    other.layers[1].values = other.layers[1].values.bfloat16()
    with pytest.raises(kvlane.Mismatch, match=r"V of torch\.bfloat16"):
        cache.save(ids, other)
    with pytest.raises(kvlane.Mismatch):
        cache.save(ids, kept(tiny.model("llama", dtype="bfloat16"), ids, 20))
    with pytest.raises(kvlane.Invalid, match="one length"):
        cache.load([[1, 2], [3]])
    assert torch.equal(cache.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY), model.generate(ids, **GREEDY))


def test_what_is_computed_faster_than_loaded_is_refused(make: Make, tmp_path: pathlib.Path) -> None:
    model = tiny.model("llama")
    ids = prompt()
    want = model.generate(ids, **GREEDY)
    for always, refused in ((False, 72), (True, 0)):
        cache = make(model, {"dirs": [str(tmp_path)], "admission": "always" if always else "auto"})
        cache.generate(ids, **GREEDY)
        for _ in range(4):
            assert cache.load(ids).get_seq_length() == 72  # no computation has been measured yet
        for _ in range(20):
            cache.store.report_computed(1 << 20, 1e-6)
        assert cache.load(ids).get_seq_length() == 72  # the first refused load is made, as a probe
        assert cache.load(ids).get_seq_length() == 72 - refused
        assert torch.equal(cache.generate(ids, **GREEDY), want)
        assert cache.counts["tokens_refused"] == 2 * refused
        for _ in range(40):
            cache.store.report_computed(256, 1000)
        assert cache.load(ids).get_seq_length() == 72
        assert cache.store.stats()["store"]["admission"]["cut"] == (3 if refused else 0)
        cache.close(30)


def test_what_computing_takes_is_measured(make: Make) -> None:
    model = tiny.model("llama", max_position_embeddings=512)
    cache = make(model)
    for seed in range(3):
        assert cache.store.stats()["store"]["admission"]["tokens_per_second"] == 0
        cache.generate(prompt(300, seed=seed), **GREEDY)
    assert 1 < cache.store.stats()["store"]["admission"]["tokens_per_second"] < 1e9
    for seed in range(3):
        cache.generate(prompt(300, seed=seed), **GREEDY)
    assert cache.counts["tokens_loaded"] == 3 * 296
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_no_option_is_deprecated(make: Make) -> None:
    cache = make(tiny.model("llama"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.generate(prompt(), **GREEDY)
    assert not [w for w in caught if "past_key_values" in str(w.message)]


def test_a_load_makes_few_calls(make: Make) -> None:
    """Counts Python calls for a model of 32 layers and 8 heads, whose blocks consist of 512
    pieces. These calls dominate the time of a short load."""
    model = tiny.model("llama", num_hidden_layers=32, num_attention_heads=8, num_key_value_heads=8)
    ids = prompt(17)
    cache = make(model)
    cache.save(ids, kept(model, ids, 17))
    cache.load(ids)
    profile = cProfile.Profile()
    past = profile.runcall(cache.load, ids)
    assert past.get_seq_length() == 16
    assert pstats.Stats(profile).total_calls < 2000  # type: ignore[attr-defined]


def test_weights_made_for_inference_alone(make: Make) -> None:
    """Tensors made in inference mode have no version, so a change is detected only if the tensor
    is another one."""
    with torch.inference_mode():
        model = tiny.model("llama")
    ids = prompt()
    cache = make(model)
    assert torch.equal(cache.generate(ids, **GREEDY), cache.generate(ids, **GREEDY))
    assert cache.counts["tokens_loaded"] == 72
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(128, 64))
    with pytest.raises(kvlane.Invalid, match="weights"):
        cache.load(ids)


def test_a_tier_that_is_full_costs_nothing_but_hits(make: Make) -> None:
    """The cache holds few blocks, so prompts evict one another. The tokens of each are right."""
    model = tiny.model("llama")
    cache = make(model, {"cache_bytes": 256 << 10})
    for seed in range(6):
        ids = prompt(seed=seed % 3)
        assert torch.equal(cache.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


def test_killed_at_random_moments(tmp_path: pathlib.Path) -> None:
    """KVLANE_KILLS sets the number of kills; the default is 10."""
    script = pathlib.Path(__file__).with_name("killed.py")
    seed = time.time_ns() % 1000
    command = [sys.executable, str(script), str(tmp_path), os.environ.get("KVLANE_KILLS", "10"), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (seed, done.stderr[-2000:])
    print(done.stdout)
