"""Makes the tests' models: a few layers with random weights, large enough that different prompts
give different tokens."""

import torch
import transformers as hf

COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


def config(name: str) -> hf.PretrainedConfig:
    if name == "llama":
        return hf.LlamaConfig(**COMMON, **HEADS, num_hidden_layers=4)
    if name == "mla":
        return hf.DeepseekV2Config(
            **COMMON, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=3,
            n_routed_experts=2, num_experts_per_tok=1, n_shared_experts=1, moe_intermediate_size=64,
        )  # fmt: skip
    if name == "hybrid":  # layers with full attention and layers with sliding windows
        layers = ["sliding_attention", "full_attention"] * 3
        return hf.Olmo3Config(**COMMON, **HEADS, num_hidden_layers=6, sliding_window=64, layer_types=layers)
    raise ValueError(f"no model {name}")


def save(name: str, folder: str) -> None:
    torch.manual_seed(0)
    c = config(name)
    c.initializer_range = 0.15
    hf.AutoModelForCausalLM.from_config(c).to(torch.bfloat16).save_pretrained(folder)
