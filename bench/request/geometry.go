package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Geometry is how a model's blocks lie: Shards that are loaded one after the other, of Planes pieces each.
type Geometry struct {
	Name, About string
	Shards      int   // layers, or groups of layers
	Planes      int   // pieces of a shard
	PieceBytes  int64 // that lie in a row on the device

	identity block.Identity
}

// Hybrid is the geometry of models with several page groups. A store's blocks have one yet, so it is refused.
const Hybrid = "hybrid"

// geometries are those that have names. One of several page groups will need planes a group here and in kvcache.
var geometries = []Geometry{
	{
		Name: "70b-tp8", About: "32 layers of a 70B model on one rank of 8: K and V of 4 KiB", Shards: 32, Planes: 2, PieceBytes: 4 << 10,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 1, HeadSize: 128, BlockTokens: 16},
	},
	{
		Name: "8b", About: "an 8B model on one GPU: K and V of 32 KiB, 32 layers", Shards: 32, Planes: 2, PieceBytes: 32 << 10,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 8, HeadSize: 128, BlockTokens: 16},
	},
	{
		Name: "mla", About: "latents, one plane of 72 KiB a layer, 61 layers", Shards: 61, Planes: 1, PieceBytes: 72 << 10,
		identity: block.Identity{Layout: block.LayoutMLA, LayerEnd: 61, HeadEnd: 1, HeadSize: 576, BlockTokens: 64},
	},
	{
		Name: "page-of-layers", About: "8 layers of an 8B model in one page of 2 MiB, 32 layers", Shards: 4, Planes: 1, PieceBytes: 2 << 20,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 8, HeadSize: 128, BlockTokens: 64},
	},
}

// Geometries returns those that have names.
func Geometries() []Geometry { return slices.Clone(geometries) }

// GeometryByName returns a geometry. The error says which there are; that of Hybrid wraps ErrNotSupported.
func GeometryByName(name string) (Geometry, error) {
	var names []string
	for _, g := range geometries {
		if g.Name == name {
			return g, nil
		}
		names = append(names, g.Name)
	}
	if name == Hybrid {
		return Geometry{}, fmt.Errorf("geometry %q has several page groups, and the store takes blocks of one only, yet: %w", name, errdefs.ErrNotSupported)
	}
	return Geometry{}, fmt.Errorf("there is no geometry %q: it is one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// BlockBytes is what a block has in pages.
func (g *Geometry) BlockBytes() int64 { return int64(g.Shards*g.Planes) * g.PieceBytes }

func (g *Geometry) layout() (*block.Layout, error) {
	return block.NewLayout(slices.Repeat([]int64{int64(g.Planes) * g.PieceBytes}, g.Shards))
}

// Identity returns the identity of the blocks.
func (g *Geometry) Identity() block.Identity {
	id := g.identity
	id.Model, id.DType = "bench/"+g.Name, "bfloat16"
	return id
}
