"""Inspection of a transformers model: the KV it keeps for a token, and whether kvlane can store it.

Unsupported models raise NotSupported with the reason.
"""

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
"""Option names under which models and generate() take a cache: cache since transformers 5.24,
past_key_values before.
"""

CACHE_OPTION = next(n for n in CACHE_OPTIONS if n in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters)
"""The option name in the installed transformers."""

# Layer types that keep only keys and values. Subclasses may keep more, so types are compared
# exactly.
_EXACT = (DynamicLayer, StaticLayer, DynamicSlidingWindowLayer, StaticSlidingWindowLayer)
_EXACT_NAMES = {"full_attention", "sliding_attention"}
# RoPE types whose frequencies depend on the sequence length. The KV of a prefix differs in a longer
# sequence.
_VARYING_ROPE = {"dynamic", "longrope", "su"}


def uses(past: weakref.ref[Any], kwargs: Mapping[str, Any]) -> bool:
    """Report whether a forward pass with these arguments continues from the cache `past`."""
    cache = past()
    return cache is not None and any(kwargs.get(name) is cache for name in CACHE_OPTIONS)


@dataclass(frozen=True)
class Shape:
    """Shape of a layer's KV of one token."""

    heads: int
    k: int
    v: int

    @property
    def elements(self) -> int:
        """The number of elements of one token."""
        return self.heads * (self.k + self.v)


def check_layers(layers: Sequence[Any]) -> None:
    """Raise NotSupported if a layer keeps anything but keys and values."""
    for i, layer in enumerate(layers):
        if type(layer) not in _EXACT and type(layer).__name__ != "DummyLayer":
            raise errors.NotSupported(
                f"layer {i} is a {type(layer).__name__}: it keeps more than keys and values of each token, or not these"
            )


def check_config(config: Any) -> None:
    """Raise NotSupported if KV depends on later tokens, or is not kept token by token."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise errors.NotSupported("an encoder-decoder model: KV depends on the encoder's input")
    if getattr(text, "use_bidirectional_attention", None):
        raise errors.NotSupported("attention is bidirectional: KV depends on tokens that follow")
    kinds = set(getattr(text, "layer_types", None) or ()) - _EXACT_NAMES
    if kinds:
        raise errors.NotSupported(f"layers of type {', '.join(sorted(kinds))}: their state cannot be reused at a prefix")
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
    """Return the tokens that stand for images, video or audio."""
    names = (f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
    return {t for t in (getattr(config, n, None) for n in names) if isinstance(t, int)}


def ends_and_padding(model: Any) -> tuple[set[int], set[int]]:
    """Return the tokens that end a text, and the padding tokens.

    generate() masks padding tokens if it gets no mask. The KV after them then differs.
    """
    sources = [x for x in (model.config.get_text_config(decoder=True), model.config, model.generation_config) if x is not None]

    def all_of(name: str) -> set[int]:
        values = [getattr(x, name, None) for x in sources]
        return {t for v in values if v is not None for t in (v if isinstance(v, list | tuple) else [v])}

    ends = all_of("eos_token_id")
    return ends, all_of("pad_token_id") - ends


def probe(model: Any) -> tuple[Any, Any, dict[int, Shape]]:
    """Compute the KV of one token. Return its dtype, its device and the shape of each layer.

    Layers that use the KV of another layer keep nothing and have no shape.
    """
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
        raise errors.NotSupported(f"the model's KV has several types or devices: {sorted(map(str, places))}")
    ((dtype, device),) = places
    if device.type not in ("cpu", "cuda"):
        raise errors.NotSupported(f"KV on device {device}: cpu and cuda are supported")
    shapes = {i: Shape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for i, layer in kept.items()}
    return dtype, device, shapes
