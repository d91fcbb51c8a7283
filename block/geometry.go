package block

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Geometry is the shape of a model's paged KV cache on one tensor-parallel rank, from which the layout and the identity
// of its blocks follow.
type Geometry struct {
	Model       string `config:"name"`
	DType       string `config:"dtype"` // of the KV cache, as ParseDType takes it
	Layers      int    `config:"layers"`
	KVHeads     int    `config:"kv_heads"`     // of the whole model; 1 for MLA
	HeadSize    int    `config:"head_size"`    // elements a head and token; for MLA, of a token's latent with its rotary part
	BlockTokens int    `config:"block_tokens"` // tokens a block
	TPSize      int    `config:"tp_size"`      // tensor-parallel ranks
	TPRank      int    `config:"tp_rank"`      // this rank, from 0
	MLA         bool   `config:"mla"`          // one plane of latents a layer, the same on every rank
	// State says that a layer has one plane of recurrent state (Mamba, linear attention) as it is at the end of a block: KVHeads heads
	// of HeadSize elements a block, not a token.
	State bool `config:"state"`
}

// maxDimension bounds each number of a Geometry, so that no product of them overflows before it is checked.
const maxDimension = 1 << 20

// Validate reports every problem of the geometry, joined; each names its field and wraps ErrInvalid.
func (g Geometry) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("geometry: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if g.Model == "" {
		bad("the model is not named")
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
		bad("kv heads %d: MLA has one latent a token, so 1", g.KVHeads)
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

// heads returns the range of KV heads that the rank holds. With more ranks than heads, neighbouring ranks hold the same
// one, as the engines replicate it.
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

// dtype is the name of the element type that identities have; of a geometry that is not valid, whatever it says.
func (g Geometry) dtype() string {
	if name, err := ParseDType(g.DType); err == nil {
		return name
	}
	return g.DType
}

// PlaneBytes returns the bytes that one block has in one plane: a layer's K, its V, or its latents. The geometry is valid.
func (g Geometry) PlaneBytes() int64 {
	first, end := g.heads()
	bytes, err := DTypeBytes(g.dtype())
	if err != nil {
		return 0
	}
	// Four numbers of 20 bits could overflow together. Past what an image may have, any larger value will do.
	n := int64(g.HeadSize)
	if !g.State {
		n *= int64(g.BlockTokens)
	}
	if n > MaxImageBytes {
		return MaxImageBytes + 1
	}
	return n * int64(end-first) * int64(bytes)
}

// PlanesPerLayer returns 2, for K and V, or 1 for MLA and for states.
func (g Geometry) PlanesPerLayer() int {
	if g.MLA || g.State {
		return 1
	}
	return 2
}

// Layout returns the layout of the blocks: one shard a layer, K then V.
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

// Identity returns the identity of the blocks. It names the heads that the rank holds and how many
// the model has, not the rank.
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
