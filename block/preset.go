package block

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Presets returns the geometries of some public models, with 16 tokens per block (vLLM's default)
// on one rank. The numbers are from each model's config.json: num_hidden_layers,
// num_key_value_heads, head_dim (or hidden_size / num_attention_heads) and torch_dtype. For MLA,
// HeadSize is kv_lora_rank + qk_rope_head_dim.
func Presets() []Geometry {
	gqa := func(model string, layers, kvHeads, headSize int) Geometry {
		return Geometry{Model: model, DType: "bfloat16", Layers: layers, KVHeads: kvHeads, HeadSize: headSize, BlockTokens: 16, TPSize: 1}
	}
	mla := func(model string, layers, latent int) Geometry {
		g := gqa(model, layers, 1, latent)
		g.MLA = true
		return g
	}
	return []Geometry{
		gqa("llama-3.1-8b", 32, 8, 128),
		gqa("llama-3.1-70b", 80, 8, 128),
		gqa("llama-3.2-1b", 16, 8, 64),
		gqa("qwen2.5-7b", 28, 4, 128),
		gqa("qwen2.5-72b", 80, 8, 128),
		gqa("qwen3-8b", 36, 8, 128),
		gqa("qwen3-32b", 64, 8, 128),
		gqa("mistral-7b", 32, 8, 128),
		gqa("mixtral-8x7b", 32, 8, 128),
		mla("deepseek-v2-lite", 27, 576),
		mla("deepseek-v3", 61, 576),
	}
}

// PresetByName returns the preset with that name, in any case. It returns ErrNotFound with a list
// of names.
func PresetByName(name string) (Geometry, error) {
	var names []string
	for _, g := range Presets() {
		if strings.EqualFold(g.Model, name) {
			return g, nil
		}
		names = append(names, g.Model)
	}
	return Geometry{}, fmt.Errorf("unknown model preset %q: known presets are %s: %w", clip(name), strings.Join(names, ", "), errdefs.ErrNotFound)
}
