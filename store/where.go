package store

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// where says what a shard of a task is in blocks: the shard of a page group's blocks.
type where struct{ group, shard int }

// ValidateLayers says what is wrong with Config.Layers for such formats, of which nothing is. Errors wrap ErrInvalid.
func ValidateLayers(formats block.Formats, layers [][]int) error {
	_, err := locate(formats, layers)
	return err
}

// locate returns where each of the model's layers is. A layer is one group's, and all from the first to the last are there.
func locate(formats block.Formats, layers [][]int) ([]where, error) {
	if len(layers) != len(formats) {
		return nil, fmt.Errorf("%d page groups have layers and %d have formats: %w", len(layers), len(formats), errdefs.ErrInvalid)
	}
	n := 0
	for i := range layers {
		if len(layers[i]) != formats[i].Layout.Shards() {
			return nil, fmt.Errorf("page group %d has %d layers, and its blocks have %d shards: %w", i, len(layers[i]), formats[i].Layout.Shards(), errdefs.ErrInvalid)
		}
		n += len(layers[i])
	}
	out := make([]where, n)
	for k := range out {
		out[k].group = -1
	}
	for i := range layers {
		for j, k := range layers[i] {
			switch {
			case j > 0 && k <= layers[i][j-1]:
				return nil, fmt.Errorf("page group %d: layer %d comes after layer %d: %w", i, k, layers[i][j-1], errdefs.ErrInvalid)
			case k < 0 || k >= n:
				return nil, fmt.Errorf("page group %d: layer %d is none of the %d that the page groups have together: a layer is missing or one is too much: %w",
					i, k, n, errdefs.ErrInvalid)
			case out[k].group >= 0:
				return nil, fmt.Errorf("layer %d is in the page groups %d and %d: %w", k, out[k].group, i, errdefs.ErrInvalid)
			}
			out[k] = where{group: i, shard: j}
		}
	}
	return out, nil
}

// leafTable says how many leaves blocks have, and where.
type leafTable [][]leafCount // by page group and shard

// leafCount is the leaves of a shard, and those before it in its block.
type leafCount struct{ before, n int }

// newLeafTable returns nil where the checksums of some blocks are not made of leaves.
func newLeafTable(formats block.Formats) *leafTable {
	t := make(leafTable, len(formats))
	for i, f := range formats {
		if f.Algo() != block.SumTree {
			return nil
		}
		at := 0
		for k := range f.Layout.Shards() {
			t[i] = append(t[i], leafCount{at, f.Layout.LeavesOf(k)})
			at += f.Layout.LeavesOf(k)
		}
	}
	return &t
}

func (t *leafTable) shard(w where) leafCount { return (*t)[w.group][w.shard] }

// block returns how many leaves a block of the page group has.
func (t *leafTable) block(group int) int {
	last := (*t)[group][len((*t)[group])-1]
	return last.before + last.n
}

// imageOf cuts a slot's extent to the image of a block of the page group; slots are as long as the longest, or longer.
func (s *Store) imageOf(e mem.Extent, group uint8) mem.Extent {
	return e.Sub(0, s.formats[group].Layout.ImageBytes())
}

// onlyLayers are the layers of the only page group: a shard each.
func onlyLayers(formats block.Formats) [][]int {
	layers := make([]int, formats[0].Layout.Shards())
	for k := range layers {
		layers[k] = k
	}
	return [][]int{layers}
}
