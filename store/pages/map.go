// Package pages describes the pages of loads and dumps: their memory, the blocks that they hold,
// and the relation between the layers of a model and the shards of blocks. It copies nothing.
package pages

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Map relates the layers of a model to the shards of blocks. Each layer belongs to one page group.
// A Map is immutable.
type Map struct {
	Formats block.Formats // by page group
	Layers  [][]int       // by page group: the layer of each shard, ascending
	shards  []Shard       // by layer
	leaves  [][]Leaves    // by page group and shard; nil if some checksums have no leaves
}

// Shard is a shard of the blocks of one page group.
type Shard struct{ Group, Index int }

// Leaves are the checksum leaves of one shard. Leaves of a block are in the order of its shards.
type Leaves struct {
	Before int // leaves of the shards before it
	Count  int
}

// End returns the number of leaves up to the end of the shard.
func (l Leaves) End() int { return l.Before + l.Count }

// NewMap returns the map of page groups with these formats and layers. Every layer from 0 to the
// last must belong to exactly one group. Otherwise it returns ErrInvalid.
func NewMap(formats block.Formats, layers [][]int) (*Map, error) {
	shards, err := locate(formats, layers)
	if err != nil {
		return nil, err
	}
	return &Map{Formats: formats, Layers: layers, shards: shards, leaves: countLeaves(formats)}, nil
}

// locate returns the shard of each layer.
func locate(formats block.Formats, layers [][]int) ([]Shard, error) {
	if len(layers) != len(formats) {
		return nil, fmt.Errorf("%d page groups have layers and %d have formats: %w", len(layers), len(formats), errdefs.ErrInvalid)
	}
	n := 0
	for i := range layers {
		if shards := formats[i].Layout.Shards(); len(layers[i]) != shards {
			return nil, fmt.Errorf("page group %d has %d layers, and its blocks have %d shards: %w", i, len(layers[i]), shards, errdefs.ErrInvalid)
		}
		n += len(layers[i])
	}
	out := make([]Shard, n)
	for k := range out {
		out[k].Group = -1
	}
	for i := range layers {
		for j, k := range layers[i] {
			switch {
			case j > 0 && k <= layers[i][j-1]:
				return nil, fmt.Errorf("page group %d: layer %d comes after layer %d: %w", i, k, layers[i][j-1], errdefs.ErrInvalid)
			case k < 0 || k >= n:
				return nil, fmt.Errorf("page group %d: layer %d is not one of the %d layers of all page groups: a layer is missing or superfluous: %w",
					i, k, n, errdefs.ErrInvalid)
			case out[k].Group >= 0:
				return nil, fmt.Errorf("layer %d is in the page groups %d and %d: %w", k, out[k].Group, i, errdefs.ErrInvalid)
			}
			out[k] = Shard{Group: i, Index: j}
		}
	}
	return out, nil
}

// countLeaves returns the leaves of each shard, or nil if the checksums of a group have no leaves.
func countLeaves(formats block.Formats) [][]Leaves {
	out := make([][]Leaves, len(formats))
	for i, f := range formats {
		if f.Algo() != block.SumTree {
			return nil
		}
		before := 0
		for k := range f.Layout.Shards() {
			n := f.Layout.LeavesOf(k)
			out[i] = append(out[i], Leaves{before, n})
			before += n
		}
	}
	return out
}

// OneGroup returns the layers of a single page group: shard k is layer k.
func OneGroup(formats block.Formats) [][]int {
	layers := make([]int, formats[0].Layout.Shards())
	for k := range layers {
		layers[k] = k
	}
	return [][]int{layers}
}

// NumLayers returns the number of layers of all page groups.
func (m *Map) NumLayers() int { return len(m.shards) }

// Shard returns the shard of a layer.
func (m *Map) Shard(layer int) Shard { return m.shards[layer] }

// LayerBytes returns the size of a layer of one block.
func (m *Map) LayerBytes(layer int) int64 {
	w := m.shards[layer]
	return m.Formats[w.Group].Layout.ShardBytes(w.Index)
}

// HasLeaves reports whether the checksums of all blocks consist of leaves.
func (m *Map) HasLeaves() bool { return m.leaves != nil }

// ShardLeaves returns the leaves of a shard. HasLeaves must be true.
func (m *Map) ShardLeaves(group, shard int) Leaves { return m.leaves[group][shard] }

// Leaves returns the leaves of shards from to to-1. HasLeaves must be true.
func (m *Map) Leaves(group, from, to int) []Leaves { return m.leaves[group][from:to] }

// BlockLeaves returns the number of leaves of a block. HasLeaves must be true.
func (m *Map) BlockLeaves(group int) int {
	shards := m.leaves[group]
	return shards[len(shards)-1].End()
}

// Image returns the part of a slot that holds the image of a block. Slots have the size of the
// largest image, or more.
func (m *Map) Image(slot mem.Extent, group uint8) mem.Extent {
	return slot.Sub(0, m.Formats[group].Layout.ImageBytes())
}
