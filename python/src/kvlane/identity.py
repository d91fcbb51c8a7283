"""Identity of KV: all properties that two models must share for their KV to be interchangeable.

Nothing here depends on the process. The same configuration and weights have the same identity in
every process and on every machine.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import errors

# Keys of a Hugging Face configuration that do not affect KV, or that are passed separately.
_IRRELEVANT = frozenset({
    "transformers_version", "architectures", "_name_or_path", "_commit_hash", "name_or_path", "dtype",
    "torch_dtype", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
    "output_router_logits", "id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task",
    "tokenizer_class", "gradient_checkpointing", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "attn_implementation", "_attn_implementation",
})  # fmt: skip


def _as_dict(config: Any) -> dict[str, Any]:
    out = config if isinstance(config, Mapping) else config.to_dict()
    return dict(out)


def _relevant(value: Any, config: bool = True) -> Any:
    """Return value without keys that do not affect KV.

    Configurations of a model's parts are filtered too; other nested mappings are kept.
    """
    if isinstance(value, Mapping):
        return {
            str(k): _relevant(v, str(k).endswith("_config") and k != "quantization_config")
            for k, v in value.items()
            if v is not None and not (config and k in _IRRELEVANT)
        }
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return [_relevant(v, False) for v in value] if isinstance(value, list | tuple) else value


def revision(
    config: Any,
    *,
    weights: str | None = None,
    commit: str | None = None,
    attention: str = "",
    layout: str = "",
    code: str = "",
) -> str:
    """Return the `revision` of a store's configuration, from a Hugging Face configuration.

    config is an object or a dict. The revision depends on all of it (parameters of RoPE, sliding
    windows, quantisation, layer types) except names, labels and special tokens.

    weights is a fingerprint of the weights. commit is their commit hash, by default that of the
    configuration. One of the two is required. attention names the attention implementation, and
    code identifies the code that computes KV; the revision does not depend on them if they are
    empty. layout is the memory layout, the order of tokens and heads in a page ("NHD", "HND").
    """
    commit = commit or getattr(config, "_commit_hash", None)
    if not weights and not commit:
        raise errors.Invalid(
            "the weights cannot be identified: give a commit hash, or a fingerprint (kvlane.identity.fingerprint)"
        )
    text = json.dumps(_relevant(_as_dict(config)), sort_keys=True, separators=(",", ":"), default=str)
    parts = {
        "commit": commit or "",
        "weights": weights or "",
        "attention": attention,
        "layout": layout,
        "code": code,
        "config": hashlib.sha256(text.encode()).hexdigest(),
    }
    return ";".join(f"{k}={v}" for k, v in parts.items() if v)


def from_hf_config(
    config: Any,
    *,
    block_tokens: int,
    dtype: str | None = None,
    name: str | None = None,
    weights: str | None = None,
    commit: str | None = None,
    attention: str = "",
    layout: str = "",
    tp_size: int = 1,
    tp_rank: int = 0,
) -> dict[str, Any]:
    """Return the keys `model` and `revision` of a store's configuration.

    Use: Store({**from_hf_config(...), "store": ...}). dtype is the element type of the KV cache, by
    default the configuration's. See revision for the other arguments.
    """
    whole = _as_dict(config)
    text = dict(whole.get("text_config") or whole)

    def first(*names: str) -> Any:
        for n in names:
            if text.get(n) is not None:
                return text[n]
        return None

    heads = first("num_attention_heads", "n_head", "num_heads")
    layers = first("num_hidden_layers", "n_layer", "num_layers")
    width = first("hidden_size", "n_embd", "d_model")
    kind = dtype or first("dtype", "torch_dtype") or whole.get("dtype")
    if heads is None or layers is None or kind is None:
        raise errors.Invalid("the configuration does not have the numbers of layers and heads, or the dtype")
    mla = first("kv_lora_rank") is not None
    size = first("kv_lora_rank") + first("qk_rope_head_dim") if mla else first("head_dim") or width // heads
    model = {
        "name": name
        or whole.get("_name_or_path")
        or getattr(config, "_name_or_path", "")
        or str(whole.get("model_type") or "model"),
        "dtype": str(kind).removeprefix("torch."),
        "layers": layers,
        "kv_heads": 1 if mla else first("num_key_value_heads", "num_kv_heads") or (1 if first("multi_query") else heads),
        "head_size": size,
        "block_tokens": block_tokens,
        "tp_size": tp_size,
        "tp_rank": tp_rank,
        "mla": mla,
    }
    return {"model": model, "revision": revision(config, weights=weights, commit=commit, attention=attention, layout=layout)}


def fingerprint(model: Any, elements: int | None = 4096) -> str:
    """Return a hash of a torch model's weights.

    It covers the name, shape and dtype of each parameter and buffer, and `elements` evenly spread
    values of each. With None it covers all values and reads the whole model. It also covers the
    adapters (peft), and which of them are active.
    """
    import torch

    h = hashlib.sha256()
    samples: dict[Any, list[Any]] = {}
    with torch.no_grad():
        for kind in (model.named_parameters(), model.named_buffers()):
            for name, tensor in sorted(kind, key=lambda named: str(named[0])):
                h.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
                flat = tensor.detach().reshape(-1)
                if elements is not None and flat.numel() > elements:
                    flat = flat[:: -(-flat.numel() // elements)]
                samples.setdefault(tensor.device, []).append(flat.contiguous().view(torch.uint8))
        for device in sorted(samples, key=str):  # one copy per device
            h.update(bytes(memoryview(_bytes(torch.cat(samples[device]).cpu()))))
    h.update(repr([(name, *adapters(m)) for name, m in model.named_modules() if adapted(m)]).encode())
    return h.hexdigest()


def code(model: Any) -> str:
    """Identify the code that computes a transformers model.

    It consists of the release of transformers, the release of torch without its last number, and a
    hash of source files. These are the files that define the classes of the model's modules, and
    the files that code from the model's folder imports.
    """
    import torch
    import transformers
    from transformers.dynamic_module_utils import get_relative_import_files

    files = set()
    for kind in {base for m in model.modules() for base in type(m).__mro__}:
        package = kind.__module__.partition(".")[0]
        if package in ("torch", "builtins"):
            continue
        try:
            file = inspect.getsourcefile(kind)
        except (TypeError, OSError):  # typed interactively, or not Python
            continue
        if file:
            files.update([file, *(get_relative_import_files(file) if package == "transformers_modules" else ())])
    hashes = sorted(hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in files)
    releases = [*transformers.__version__.split(".")[:3], "torch", *torch.__version__.split(".")[:2]]
    return ".".join(releases) + "-" + hashlib.sha256("".join(hashes).encode()).hexdigest()


def _bytes(tensor: Any) -> Any:
    import ctypes

    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def model_folder(model: str, revision: str | None) -> Path | None:
    """Return the folder of a model's files: its own, or its snapshot in the Hugging Face cache.

    Returns None if neither is known.
    """
    if os.path.isdir(model):
        return Path(model)
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception:  # any failure of the cache means that the folder is unknown
        return None
    return Path(found).parent if isinstance(found, str) else None


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def folder_fingerprint(folder: Path | None, samples: int = 64, sample_bytes: int = 4096) -> str | None:
    """Return a hash of the weights in a folder, or None if there are none.

    For files of a snapshot in the Hugging Face cache it hashes the names of their blobs, which are
    content hashes, unless the files were modified since. For other files it hashes the name,
    length, modification time and evenly spread samples. So a copy with other modification times
    has another fingerprint.
    """
    h, found = hashlib.sha256(), False
    for path in sorted(p for p in folder.iterdir() if p.suffix in _WEIGHTS) if folder else ():
        found = True
        if blob := _blob(path):
            h.update(os.fsencode(path.name) + f"\0{blob}\0".encode())
            continue
        stat = path.stat()
        h.update(os.fsencode(path.name) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with path.open("rb") as f:
            h.update(f.read(1 << 20))  # names and shapes of a safetensors file
            for i in range(samples):
                f.seek(max(0, (stat.st_size - sample_bytes) * i // max(1, samples - 1)))
                h.update(f.read(sample_bytes))
    return h.hexdigest() if found else None


def _blob(path: Path) -> str | None:
    """Return the name of a file's blob in the Hugging Face cache.

    Returns None if the file is elsewhere, or was modified after it was linked.
    """
    file = path.resolve()
    if file.parent.name != "blobs" or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", file.name):
        return None
    return file.name if file.stat().st_mtime_ns <= path.lstat().st_mtime_ns else None


def adapted(module: Any) -> bool:
    """Report whether a module has adapters."""
    # hasattr on the module is slow if the attribute is missing.
    return ("merged_adapters" in vars(module) or hasattr(type(module), "merged_adapters")) and hasattr(module, "disable_adapters")


def adapters(m: Any) -> tuple[Any, ...]:
    """Return the active adapters of a module that has some, and their scaling."""
    return str(m.active_adapters), bool(m.disable_adapters), str(m.merged_adapters), str(getattr(m, "scaling", ""))
