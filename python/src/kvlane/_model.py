"""What a model of transformers keeps of a token, and whether that can be stored: the reason where it cannot."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer

from . import errors

CACHE_OPTIONS = ("cache", "past_key_values")
"""The names of the option by which models and generate() take a cache: cache since transformers 5.24, past_key_values before."""

CACHE_OPTION = next(n for n in CACHE_OPTIONS if n in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters)
"""That of the transformers that is installed."""

# The layers whose keys and values are all there is to them, of these types exactly: what derives from them may keep more.
_EXACT = (DynamicLayer, StaticLayer, DynamicSlidingWindowLayer, StaticSlidingWindowLayer)
_EXACT_NAMES = {"full_attention", "sliding_attention"}
# RoPE whose frequencies depend on how long the sequence is: KV of a prefix is another one in a longer sequence.
_VARYING_ROPE = {"dynamic", "longrope", "su"}


def uses(past: weakref.ref[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a computation of those arguments goes on from a cache."""
    cache = past()
    return cache is not None and any(kwargs.get(name) is cache for name in CACHE_OPTIONS)


@dataclass(frozen=True)
class Shape:
    """What a layer keeps of a token."""

    heads: int
    k: int
    v: int

    @property
    def elements(self) -> int:
        """Of a token."""
        return self.heads * (self.k + self.v)


def check_layers(layers: Sequence[Any]) -> None:
    """Raises where a cache has layers that keep anything but keys and values."""
    for i, layer in enumerate(layers):
        if type(layer) not in _EXACT and type(layer).__name__ != "DummyLayer":
            raise errors.NotSupported(
                f"layer {i} is a {type(layer).__name__}: it keeps more than keys and values of each token, or not these"
            )


def check_config(config: Any) -> None:
    """Raises where KV of a prefix is not the same in every sequence, or is not kept token by token."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise errors.NotSupported("an encoder-decoder model: KV depends on what the encoder was given")
    if getattr(text, "use_bidirectional_attention", None):
        raise errors.NotSupported("attention is bidirectional: KV depends on tokens that follow")
    kinds = set(getattr(text, "layer_types", None) or ()) - _EXACT_NAMES
    if kinds:
        raise errors.NotSupported(f"layers of type {', '.join(sorted(kinds))}: what they keep cannot be cut at a prefix")
    types = _rope_types(getattr(text, "rope_parameters", None)) | _rope_types(getattr(text, "rope_scaling", None))
    if types & _VARYING_ROPE:
        raise errors.NotSupported(
            f"RoPE of type {', '.join(sorted(types & _VARYING_ROPE))}: KV depends on how long the sequence is"
        )
    check_layers(DynamicCache(config=config).layers)


def _rope_types(value: Any) -> set[str]:
    if not isinstance(value, Mapping):
        return set()
    own = {str(value[k]) for k in ("rope_type", "type") if value.get(k)}
    return own.union(*(_rope_types(v) for v in value.values()))


def media_tokens(config: Any) -> set[int]:
    """The tokens that stand for something that is not text."""
    names = (f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
    return {t for t in (getattr(config, n, None) for n in names) if isinstance(t, int)}


def ends_and_padding(model: Any) -> tuple[set[int], set[int]]:
    """The tokens that end a text, and those that generate() masks where it is given no mask: what is computed after them is
    another KV.
    """
    sources = [x for x in (model.config.get_text_config(decoder=True), model.config, model.generation_config) if x is not None]

    def all_of(name: str) -> set[int]:
        values = [getattr(x, name, None) for x in sources]
        return {t for v in values if v is not None for t in (v if isinstance(v, list | tuple) else [v])}

    ends = all_of("eos_token_id")
    return ends, all_of("pad_token_id") - ends


def probe(model: Any) -> tuple[Any, Any, dict[int, Shape]]:
    """The dtype and device of a model's KV, and what each layer keeps of a token; layers that use another's KV keep nothing."""
    past = DynamicCache()
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), **{CACHE_OPTION: past}, use_cache=True)
    kept = {i: layer for i, layer in enumerate(past.layers) if getattr(layer, "keys", None) is not None}
    check_layers(past.layers)
    if not kept or any(layer.keys.shape[2] != 1 or layer.values.shape[:3] != layer.keys.shape[:3] for layer in kept.values()):
        raise errors.NotSupported(
            f"{type(model).__name__} does not keep keys and values of each token in the cache that it is given"
        )
    places = {(layer.keys.dtype, layer.keys.device) for layer in kept.values()} | {
        (x.values.dtype, x.values.device) for x in kept.values()
    }
    if len(places) != 1:
        raise errors.NotSupported(f"the model's KV is of several types or on several devices: {sorted(map(str, places))}")
    ((dtype, device),) = places
    if device.type not in ("cpu", "cuda"):
        raise errors.NotSupported(f"KV on device {device}: cpu and cuda are supported")
    shapes = {i: Shape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for i, layer in kept.items()}
    return dtype, device, shapes
