package block_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func preset(tb testing.TB, name string) block.Geometry {
	tb.Helper()
	g, err := block.PresetByName(name)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func TestPresets(t *testing.T) {
	// Bytes of KV cache for each token in bfloat16, from the models' documentation and public
	// calculators.
	perToken := map[string]int64{
		"llama-3.1-8b": 131072, "llama-3.1-70b": 327680, "qwen2.5-7b": 57344, "qwen3-32b": 262144,
		"mistral-7b": 131072, "deepseek-v3": 70272,
	}
	for _, g := range block.Presets() {
		l, err := g.Layout()
		if err != nil {
			t.Errorf("%s: %v", g.Model, err)
			continue
		}
		if err := g.Identity("", "").Validate(); err != nil {
			t.Errorf("%s: %v", g.Model, err)
		}
		if want, ok := perToken[g.Model]; ok && l.DataBytes() != want*int64(g.BlockTokens) {
			t.Errorf("%s: %d bytes a block of %d tokens, want %d a token", g.Model, l.DataBytes(), g.BlockTokens, want)
		}
		delete(perToken, g.Model)
	}
	if len(perToken) > 0 {
		t.Errorf("no presets of %v", perToken)
	}
	if g := preset(t, "Llama-3.1-8B"); g.Model != "llama-3.1-8b" {
		t.Errorf("PresetByName found %s", g.Model)
	}
	if _, err := block.PresetByName("gpt-5"); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "qwen3-32b") {
		t.Errorf("unknown preset: %v", err)
	}
}

func TestGeometryOfARank(t *testing.T) {
	tests := []struct {
		kvHeads, size, rank int
		mla                 bool
		first, end          int
		plane               int64
	}{
		{8, 1, 0, false, 0, 8, 8 * 4096},
		{8, 4, 3, false, 6, 8, 2 * 4096},
		{8, 8, 5, false, 5, 6, 4096},
		{4, 8, 5, false, 2, 3, 4096}, // more ranks than heads: two ranks for each head
		{1, 8, 7, true, 0, 1, 4096},  // latents are equal on every rank
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d heads, rank %d of %d, mla %v", tt.kvHeads, tt.rank, tt.size, tt.mla), func(t *testing.T) {
			g := block.Geometry{
				Model: "m", DType: "bfloat16", Layers: 3, KVHeads: tt.kvHeads, HeadSize: 128, BlockTokens: 16,
				TPSize: tt.size, TPRank: tt.rank, MLA: tt.mla,
			}
			if err := g.Validate(); err != nil {
				t.Fatal(err)
			}
			id := g.Identity("lora", "salt")
			if id.HeadFirst != tt.first || id.HeadEnd != tt.end || g.PlaneBytes() != tt.plane || id.Adapter != "lora" || id.Salt != "salt" {
				t.Errorf("heads [%d, %d), plane %d bytes, identity %+v", id.HeadFirst, id.HeadEnd, g.PlaneBytes(), id)
			}
			l, err := g.Layout()
			if err != nil || l.Shards() != 3 || l.ShardBytes(0) != tt.plane*int64(g.PlanesPerLayer()) {
				t.Errorf("layout %v, %v", l, err)
			}
		})
	}
}

// KV that is equal on several ranks has one identity, so that each rank finds the blocks of the
// others.
func TestReplicatedKVHitsOnEveryRank(t *testing.T) {
	keys := func(g block.Geometry) int {
		distinct := make(map[block.Digest]bool)
		for g.TPRank = range g.TPSize {
			distinct[g.Identity("", "").Digest()] = true
		}
		return len(distinct)
	}
	mla, gqa := preset(t, "deepseek-v3"), preset(t, "qwen2.5-7b") // 4 heads
	mla.TPSize, gqa.TPSize = 8, 8
	if a, b := keys(mla), keys(gqa); a != 1 || b != 4 {
		t.Errorf("8 ranks have %d identities of MLA, want 1, and %d of 4 heads, want 4", a, b)
	}
}

func TestGeometryValidateNamesEveryProblem(t *testing.T) {
	tests := []struct {
		name   string
		change func(*block.Geometry)
		want   []string
	}{
		{"division", func(g *block.Geometry) { g.TPSize = 3 }, []string{"kv heads 8 do not divide by tensor-parallel size 3"}},
		{"rank", func(g *block.Geometry) { g.TPSize, g.TPRank = 2, 2 }, []string{"tensor-parallel rank 2 is not between 0 and 1"}},
		{"several", func(g *block.Geometry) { g.Layers, g.HeadSize, g.DType = 0, -1, "bf17" }, []string{"layers 0", "head size -1", `"bf17"`}},
		{"mla heads", func(g *block.Geometry) { g.MLA = true }, []string{"kv heads 8: must be 1 with MLA"}},
		{"too many layers", func(g *block.Geometry) { g.Layers = 5000 }, []string{"layers 5000"}},
		{"too large", func(g *block.Geometry) { g.BlockTokens, g.HeadSize, g.KVHeads = 1<<20, 1<<20, 1<<20 }, []string{"image"}},
		{"absurd", func(g *block.Geometry) { g.BlockTokens = 1 << 40 }, []string{"block tokens"}},
		{"nothing", func(g *block.Geometry) { *g = block.Geometry{} }, []string{"model", "layers 0", "kv heads 0", "tensor-parallel size 0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := preset(t, "llama-3.1-8b")
			tt.change(&g)
			err := g.Validate()
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in:\n%v", w, err)
				}
			}
			if _, err := g.Layout(); err == nil {
				t.Error("Layout of an invalid geometry succeeded")
			}
		})
	}
}

// An identity uses one name of a data type, whichever name a configuration gives, so that the keys
// of its blocks are the same.
func TestDTypeByAnyNameIsOneIdentity(t *testing.T) {
	for name, want := range map[string]string{
		"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "f32": "float32", "fp32": "float32", "fp8": "fp8_e4m3",
		"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "int8": "int8", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
	} {
		short, long := preset(t, "llama-3.1-8b"), preset(t, "llama-3.1-8b")
		short.DType, long.DType = name, want
		if got, err := block.ParseDType(name); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
		a, err := short.Layout()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, err := long.Layout()
		if err != nil || !a.Equal(b) || short.Identity("", "") != long.Identity("", "") || short.PlaneBytes() != long.PlaneBytes() {
			t.Errorf("%s and %s differ: %v, %+v", name, want, err, short.Identity("", ""))
		}
	}
	// An identity accepts only that name.
	id := preset(t, "llama-3.1-8b").Identity("", "")
	id.DType = "bf16"
	if err := id.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an identity of bf16: %v, want ErrInvalid", err)
	}
	if _, err := block.ParseDType("bf17"); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "bfloat16 (bf16), float16 (fp16, f16, half)") {
		t.Errorf("bf17: %v, want ErrInvalid that lists the types", err)
	}
	for _, name := range block.DTypes() {
		if got, err := block.ParseDType(name); err != nil || got != name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
