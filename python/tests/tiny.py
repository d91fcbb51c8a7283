"""Makes tiny random models."""

from __future__ import annotations

from typing import Any

import torch
import transformers as t

torch.set_num_threads(1)  # the models are too small for more threads

# Decoder-only models whose every layer can be stored. They cover full attention, windows, both,
# tied latents, absolute positions and ALiBi.
KINDS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt2",
    "deepseek",
    "phi3",
    "bloom",
    "opt",
    "mixtral",
    "gptneox",
)

_LLAMA: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_MHA = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}


def config(kind: str, **change: Any) -> Any:
    """Returns the configuration of a tiny model."""
    make: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (t.LlamaConfig, {}),
        "mistral": (t.MistralConfig, {"sliding_window": 24, "head_dim": 16}),
        "qwen2": (t.Qwen2Config, {}),
        "qwen3": (t.Qwen3Config, {"head_dim": 16}),
        "gemma2": (t.Gemma2Config, {"sliding_window": 24, "head_dim": 16}),
        "gemma3": (t.Gemma3TextConfig, {
            "sliding_window": 24, "head_dim": 16, "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }),
        "gemma3n": (t.Gemma3nTextConfig, {  # some layers use the KV of others
            "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 24, "num_kv_shared_layers": 2,
            "intermediate_size": [96] * 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3, "vocab_size_per_layer_input": 128, "laurel_rank": 8,
            "hidden_size_per_layer_input": 16, "activation_sparsity_pattern": [0.0] * 6,
        }),
        "gemma4": (t.Gemma4TextConfig, {  # layers of two shapes
            "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 24, "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 128,
            "hidden_size_per_layer_input": 16,
        }),
        "llama4": (t.Llama4TextConfig, {
            "head_dim": 16, "num_hidden_layers": 4, "attention_chunk_size": 24, "num_local_experts": 2,
            "intermediate_size_mlp": 96,
        }),
        "phi3": (t.Phi3Config, {}),
        "mixtral": (t.MixtralConfig, {"num_local_experts": 4, "head_dim": 16}),
        "gptneox": (t.GPTNeoXConfig, {}),
        "deepseek": (t.DeepseekV3Config, {
            "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 2,
            "topk_group": 1, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 12,
            "qk_nope_head_dim": 16,
        }),
        "qwen3next": (t.Qwen3NextConfig, {"num_hidden_layers": 4}),
    }  # fmt: skip
    special = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": None}
    match kind:
        case "gpt2":
            return t.GPT2Config(vocab_size=128, n_embd=64, n_layer=3, n_head=4, n_positions=256, **special, **change)
        case "bloom":
            return t.BloomConfig(vocab_size=128, hidden_size=64, n_layer=3, n_head=4, **special, **change)
        case "opt":
            return t.OPTConfig(
                vocab_size=128,
                hidden_size=64,
                ffn_dim=96,
                num_hidden_layers=3,
                num_attention_heads=4,
                word_embed_proj_dim=64,
                **special,
                **change,
            )
        case "t5":
            return t.T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, **change)
    cls, own = make[kind]
    base = _MHA if kind == "gptneox" else _LLAMA
    return cls(**{**base, **own, **change})


def model(kind: str, *, dtype: str = "float32", seed: int = 0, **change: Any) -> Any:
    """Returns a tiny model with random weights, which are the same for the same arguments."""
    torch.manual_seed(seed)
    cfg = config(kind, **change)
    auto = t.AutoModelForSeq2SeqLM if kind == "t5" else t.AutoModelForCausalLM
    made = auto.from_config(cfg).to(getattr(torch, dtype)).eval()
    with torch.no_grad():  # larger weights: with the initial ones the next token hardly depends on the prompt
        for p in made.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.2, generator=torch.Generator().manual_seed(seed + p.numel()))
    return made
