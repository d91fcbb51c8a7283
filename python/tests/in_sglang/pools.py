"""Makes SGLang's KV pools in host memory for a small model, and the keys and options that SGLang
passes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE, LAYERS, HEADS, SIZE, TOKENS = 4, 3, 2, 8, 64
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": HEADS, "head_dim": SIZE, "vocab_size": 128,
    "max_position_embeddings": 256, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip


def device_pool(mla: bool = False) -> Any:
    """Makes a pool of the kind in which SGLang computes KV."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    same: dict[str, Any] = {
        "size": TOKENS, "page_size": PAGE, "dtype": torch.bfloat16, "layer_num": LAYERS, "device": "cpu",
        "enable_memory_saver": False,
    }  # fmt: skip
    if mla:
        return MLATokenToKVPool(kv_lora_rank=16, qk_rope_head_dim=8, **same)
    return MHATokenToKVPool(head_num=HEADS, head_dim=SIZE, **same)


def host_pool(layout: str, mla: bool = False) -> Any:
    """Makes a host pool of SGLang's HiCache."""
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device = device_pool(mla)
    same: dict[str, Any] = {
        "host_to_device_ratio": 2.0, "host_size": 0, "page_size": PAGE, "layout": layout, "pin_memory": False, "device": "cpu",
        "device_capacity_tokens": TOKENS, "start_layer": 0, "end_layer": LAYERS,
    }  # fmt: skip
    if mla:
        return MLATokenToKVPoolHost(device._mla_buffer_info(), target_layer_num=LAYERS, **same)
    return MHATokenToKVPoolHost(device._mha_buffer_info(), **same)


def fill(tensors: Any, seed: int = 0) -> None:
    """Fills tensors with random bytes."""
    import torch

    gen = torch.Generator().manual_seed(seed)
    for t in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
        t.copy_(torch.randn(t.shape, generator=gen).to(t.dtype))


def hashes(n: int, seed: int = 0) -> list[str]:
    """Returns SGLang's hashes of n pages."""
    from sglang.srt.mem_cache.utils import get_hash_str

    out = get_hash_str([(i * 7 + seed) % 128 for i in range(n * PAGE)], None, page_size=PAGE)
    assert isinstance(out, list)
    return out


def own(folder: Path | None = None, **more: Any) -> dict[str, Any]:
    """Returns the object "kvlane" of SGLang's options."""
    store: dict[str, Any] = {"cache_bytes": 16 << 20}
    if folder is not None:
        store["dirs"] = [str(folder)]
    return {"kvlane": {"store": store, "wait_seconds": 20} | more}


def extra(folder: Path | None = None, **more: Any) -> dict[str, Any]:
    """Returns the value of --hicache-storage-backend-extra-config."""
    return {
        "backend_name": "kvlane", "module_path": "kvlane.sglang", "class_name": "Storage", "interface_v1": 1,
        **own(folder, **more),
    }  # fmt: skip


def flip(folder: Path) -> int:
    """Flips a bit near the end of every block's file. Returns the number of files."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".json" and p.stat().st_size > 500]
    for p in files:
        data = bytearray(p.read_bytes())
        data[-100] ^= 4
        p.write_bytes(data)
    return len(files)
