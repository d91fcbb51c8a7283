package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Geometry describes the blocks of a model in one or several page groups. A block of tokens has one
// block in each group.
type Geometry struct {
	Name, About string
	Groups      []Group
}

// Group describes the blocks of a page group. A block has Shards that are loaded one after another,
// each with Planes pieces.
type Group struct {
	Name       string // set if there are several groups
	Layers     []int  // layers of the model; set if there are several groups
	Shards     int    // layers, or groups of layers
	Planes     int    // number of pieces of a shard
	PieceBytes int64  // contiguous on the device

	identity block.Identity
}

// geometries are the predefined geometries.
var geometries = []Geometry{
	only("70b-tp8", "32 layers of a 70B model on one rank of 8: K and V of 4 KiB", Group{
		Shards: 32, Planes: 2, PieceBytes: 4 << 10,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 1, HeadSize: 128, BlockTokens: 16},
	}),
	only("8b", "an 8B model on one GPU: K and V of 32 KiB, 32 layers", Group{
		Shards: 32, Planes: 2, PieceBytes: 32 << 10,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 8, HeadSize: 128, BlockTokens: 16},
	}),
	only("mla", "latents, one plane of 72 KiB a layer, 61 layers", Group{
		Shards: 61, Planes: 1, PieceBytes: 72 << 10,
		identity: block.Identity{Layout: block.LayoutMLA, LayerEnd: 61, HeadEnd: 1, HeadSize: 576, BlockTokens: 64},
	}),
	only("page-of-layers", "8 layers of an 8B model in one page of 2 MiB, 32 layers", Group{
		Shards: 4, Planes: 1, PieceBytes: 2 << 20,
		identity: block.Identity{Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 8, HeadSize: 128, BlockTokens: 64},
	}),
	hybrid(),
}

func only(name, about string, g Group) Geometry {
	return Geometry{Name: name, About: about, Groups: []Group{g}}
}

// hybrid returns a geometry with interleaved layer types: of each five layers, three have a sliding
// window and half the heads, one has full attention, and one has a recurrent state.
func hybrid() Geometry {
	sliding := Group{
		Name: "sliding", Planes: 2, PieceBytes: 16 << 10,
		identity: block.Identity{Layout: block.LayoutKV, HeadEnd: 4, HeadSize: 128, BlockTokens: 16},
	}
	full := Group{
		Name: "full", Planes: 2, PieceBytes: 32 << 10,
		identity: block.Identity{Layout: block.LayoutKV, HeadEnd: 8, HeadSize: 128, BlockTokens: 16},
	}
	state := Group{
		Name: "state", Planes: 1, PieceBytes: 128 << 10,
		identity: block.Identity{Layout: block.LayoutState, HeadEnd: 8, HeadSize: 8192, BlockTokens: 16},
	}
	const layers = 40
	for k := range layers {
		g := &sliding
		switch k % 5 {
		case 3:
			g = &full
		case 4:
			g = &state
		}
		g.Layers = append(g.Layers, k)
	}
	out := Geometry{
		Name:   "hybrid",
		About:  "three page groups: 24 layers with a sliding window, K and V of 16 KiB, 8 with full attention, of 32 KiB, 8 with a state of 128 KiB",
		Groups: []Group{sliding, full, state},
	}
	for i := range out.Groups {
		g := &out.Groups[i]
		g.Shards, g.identity.LayerEnd = len(g.Layers), layers
	}
	return out
}

// Geometries returns the predefined geometries.
func Geometries() []Geometry { return slices.Clone(geometries) }

// GeometryByName returns the predefined geometry with a name. The error lists the valid names.
func GeometryByName(name string) (Geometry, error) {
	var names []string
	for _, g := range geometries {
		if g.Name == name {
			return g, nil
		}
		names = append(names, g.Name)
	}
	return Geometry{}, fmt.Errorf("unknown geometry %q: must be one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// BlockBytes returns the total length of a block of tokens in the pages of all groups.
func (g *Geometry) BlockBytes() int64 {
	n := int64(0)
	for _, p := range g.Groups {
		n += int64(p.Shards*p.Planes) * p.PieceBytes
	}
	return n
}

// PieceBytes returns the length of the shortest contiguous piece on the device.
func (g *Geometry) PieceBytes() int64 {
	n := g.Groups[0].PieceBytes
	for _, p := range g.Groups {
		n = min(n, p.PieceBytes)
	}
	return n
}

// Shards returns the number of shards of a block in all page groups.
func (g *Geometry) Shards() int {
	n := 0
	for _, p := range g.Groups {
		n += p.Shards
	}
	return n
}

// blocks returns the block descriptions of the page groups.
func (g *Geometry) blocks() ([]kvlane.Blocks, error) {
	var all []kvlane.Blocks
	for _, p := range g.Groups {
		layout, err := block.NewLayout(slices.Repeat([]int64{int64(p.Planes) * p.PieceBytes}, p.Shards))
		if err != nil {
			return nil, err
		}
		id := p.identity
		id.Model, id.DType = "bench/"+g.Name, "bfloat16"
		id.Group, id.Layers = p.Name, block.FormatLayers(p.Layers)
		all = append(all, kvlane.Blocks{Identity: id, Layout: layout})
	}
	return all, nil
}
