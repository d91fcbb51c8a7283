package block

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Geometry is the shape of a model's paged KV cache on one tensor-parallel rank. It determines the
// layout and identity of its blocks.
type Geometry struct {
	Model   string `config:"name"`
	DType   string `config:"dtype"` // of the KV cache; see ParseDType
	Layers  int    `config:"layers"`
	KVHeads int    `config:"kv_heads"` // of the whole model; 1 for MLA
	// elements per head and token; for MLA those of the latent with its rotary part
	HeadSize    int  `config:"head_size"`
	BlockTokens int  `config:"block_tokens"` // tokens per block
	TPSize      int  `config:"tp_size"`      // tensor-parallel ranks
	TPRank      int  `config:"tp_rank"`      // this rank, from 0
	MLA         bool `config:"mla"`          // one plane of latents per layer, equal on all ranks
	// State is true if a layer has one plane of recurrent state (Mamba, linear attention). A block
	// stores the state at its end: KVHeads heads of HeadSize elements per block, not per token.
	State bool `config:"state"`
}

// maxDimension bounds each number of a Geometry, so that products do not overflow before they are
// checked.
const maxDimension = 1 << 20

// Validate reports all errors of the geometry, joined. Each names its field and wraps ErrInvalid.
func (g Geometry) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("geometry: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if g.Model == "" {
		bad("the model has no name")
	}
	if _, err := ParseDType(g.DType); err != nil {
		errs = append(errs, fmt.Errorf("geometry: %w", err))
	}
	ok := true
	for _, f := range []numberField{
		{"layers", g.Layers}, {"kv heads", g.KVHeads}, {"head size", g.HeadSize}, {"block tokens", g.BlockTokens}, {"tensor-parallel size", g.TPSize},
	} {
		if f.value < 1 || f.value > maxDimension {
			bad("%s %d is not between 1 and %d", f.name, f.value, maxDimension)
			ok = false
		}
	}
	if g.TPRank < 0 || g.TPRank >= max(g.TPSize, 1) {
		bad("tensor-parallel rank %d is not between 0 and %d", g.TPRank, max(g.TPSize, 1)-1)
	}
	if g.MLA && g.State {
		bad("a layer has latents or a state, not both")
	}
	if g.MLA && g.KVHeads != 1 {
		bad("kv heads %d: must be 1 with MLA, which has one latent per token", g.KVHeads)
	}
	if ok && !g.MLA && g.KVHeads%g.TPSize != 0 && g.TPSize%g.KVHeads != 0 {
		bad("kv heads %d do not divide by tensor-parallel size %d", g.KVHeads, g.TPSize)
	}
	if len(errs) == 0 {
		if _, err := g.layout(); err != nil {
			errs = append(errs, fmt.Errorf("geometry: %w", err))
		}
	}
	return errors.Join(errs...)
}

// heads returns the range of KV heads of the rank. If there are more ranks than heads, neighbouring
// ranks hold the same head, as in inference engines.
func (g Geometry) heads() (first, end int) {
	switch {
	case g.MLA:
		return 0, 1
	case g.KVHeads >= g.TPSize:
		n := g.KVHeads / g.TPSize
		return g.TPRank * n, (g.TPRank + 1) * n
	default:
		h := g.TPRank / (g.TPSize / g.KVHeads)
		return h, h + 1
	}
}

// dtype returns the name of the element type in identities. An invalid name is returned unchanged.
func (g Geometry) dtype() string {
	if name, err := ParseDType(g.DType); err == nil {
		return name
	}
	return g.DType
}

// PlaneBytes returns the bytes of a block in one plane: a layer's K, its V, or its latents. The
// geometry must be valid.
func (g Geometry) PlaneBytes() int64 {
	first, end := g.heads()
	bytes, err := DTypeBytes(g.dtype())
	if err != nil {
		return 0
	}
	// The product of the dimensions could overflow. Any value above MaxImageBytes is invalid.
	n := int64(g.HeadSize)
	if !g.State {
		n *= int64(g.BlockTokens)
	}
	if n > MaxImageBytes {
		return MaxImageBytes + 1
	}
	return n * int64(end-first) * int64(bytes)
}

// PlanesPerLayer returns 2 for K and V, and 1 for MLA and states.
func (g Geometry) PlanesPerLayer() int {
	if g.MLA || g.State {
		return 1
	}
	return 2
}

// Layout returns the layout of the blocks: one shard per layer, K before V.
func (g Geometry) Layout() (*Layout, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	return g.layout()
}

func (g Geometry) layout() (*Layout, error) {
	if g.Layers > MaxShards {
		return nil, fmt.Errorf("layers %d are more than %d shards a block: %w", g.Layers, MaxShards, errdefs.ErrInvalid)
	}
	lens := make([]int64, g.Layers)
	for i := range lens {
		lens[i] = g.PlaneBytes() * int64(g.PlanesPerLayer())
	}
	return NewLayout(lens)
}

// Identity returns the identity of the blocks. It contains the heads of the rank and their total
// number in the model, but not the rank.
func (g Geometry) Identity(adapter, salt string) Identity {
	layout := LayoutKV
	switch {
	case g.MLA:
		layout = LayoutMLA
	case g.State:
		layout = LayoutState
	}
	first, end := g.heads()
	heads := 0
	if end-first != g.KVHeads {
		heads = g.KVHeads
	}
	return Identity{
		Model: g.Model, DType: g.dtype(), Layout: layout,
		LayerEnd: g.Layers, HeadFirst: first, HeadEnd: end, Heads: heads,
		HeadSize: g.HeadSize, BlockTokens: g.BlockTokens,
		Adapter: adapter, Salt: salt,
	}
}
