package store

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Pages describes a paged KV cache in device memory. Immutable while a task uses it.
type Pages struct {
	// Shards[k] holds the planes of layer k of the model: with one page group those of shard k of a block. A plane's SlotOff counts
	// from the start of the image of a block of the layer's group, so it lies in [Layout.ShardOff(i), +Layout.ShardBytes(i)) of
	// that group's layout, the layer being shard i of its blocks. The planes of a shard cover it without overlap.
	//
	// Page groups may lie in the same memory, if no page of one that is in use shares bytes with one of another.
	Shards [][]mem.Plane
}

// validate checks the planes against the layouts. Errors wrap ErrInvalid and name shard and plane.
func (p *Pages) validate(formats block.Formats, where []where) error {
	if p == nil || len(p.Shards) != len(where) {
		n := 0
		if p != nil {
			n = len(p.Shards)
		}
		return fmt.Errorf("pages have %d shards and blocks have %d: %w", n, len(where), errdefs.ErrInvalid)
	}
	for i, planes := range p.Shards {
		w := where[i]
		l := formats[w.group].Layout
		start, end := l.ShardOff(w.shard), l.ShardOff(w.shard)+l.ShardBytes(w.shard)
		var sum int64
		for j := range planes {
			pl := &planes[j]
			switch {
			case pl.Region == nil || pl.Bytes <= 0 || pl.Stride < pl.Bytes || pl.Base < 0:
				return fmt.Errorf("shard %d plane %d (%d bytes, stride %d, base %d, %s) is no plane: %w",
					i, j, pl.Bytes, pl.Stride, pl.Base, pl.Region, errdefs.ErrInvalid)
			case pl.SlotOff < start || pl.SlotOff > end-pl.Bytes:
				return fmt.Errorf("shard %d plane %d at [%d, +%d) of the image is outside the shard's [%d, %d): %w",
					i, j, pl.SlotOff, pl.Bytes, start, end, errdefs.ErrInvalid)
			}
			for k := range planes[:j] {
				if o := &planes[k]; pl.SlotOff < o.SlotOff+o.Bytes && o.SlotOff < pl.SlotOff+pl.Bytes {
					return fmt.Errorf("shard %d planes %d and %d overlap in the image: %w", i, k, j, errdefs.ErrInvalid)
				}
			}
			sum += pl.Bytes
		}
		// A gap would be summed and stored with whatever the slot held before.
		if want := l.ShardBytes(w.shard); sum != want {
			return fmt.Errorf("shard %d has planes of %d bytes for %d: %w", i, sum, want, errdefs.ErrInvalid)
		}
	}
	return nil
}

// count returns the number of pages that every plane of these layers has.
func (p *Pages) count(layers []int) int64 {
	n := int64(math.MaxUint32) + 1
	for _, k := range layers {
		for i := range p.Shards[k] {
			pl := &p.Shards[k][i]
			room := pl.Region.Len() - pl.Base - pl.Bytes
			if room < 0 {
				return 0
			}
			n = min(n, room/pl.Stride+1)
		}
	}
	return n
}

// share says whether two page groups number the pages of some plane alike, so that a page of one is the same page of the other.
func (p *Pages) share(a, b []int) bool {
	for _, k := range a {
		for i := range p.Shards[k] {
			for _, m := range b {
				for j := range p.Shards[m] {
					x, y := &p.Shards[k][i], &p.Shards[m][j]
					if x.Region == y.Region && x.Base == y.Base && x.Stride == y.Stride {
						return true
					}
				}
			}
		}
	}
	return false
}

// Ref pairs a block with the page that holds, or will hold, its bytes: a page of the block's page group, which follows from its key.
type Ref struct {
	Key  block.Key
	Page uint32
}

// pageSet finds pages that a load names twice: their bytes would be a mixture of two blocks.
type pageSet struct {
	bits   []uint64
	counts []int64 // by page group: how many pages there are
	bases  []int64 // by page group: the bit of page 0; groups that share pages have the same
}

// lay readies the set for the page groups of p.
func (b *pageSet) lay(p *Pages, layers [][]int, unique bool) {
	b.counts, b.bases = b.counts[:0], b.bases[:0]
	most := int64(0)
	for g := range layers {
		b.counts = append(b.counts, p.count(layers[g]))
		most = max(most, b.counts[g])
	}
	if !unique {
		return
	}
	for g := range layers {
		b.bases = append(b.bases, int64(g)*most)
		for o := range g {
			if p.share(layers[o], layers[g]) {
				b.bases[g] = b.bases[o]
				break
			}
		}
	}
	if need := (int64(len(layers))*most + 63) / 64; int64(len(b.bits)) < need {
		b.bits = make([]uint64, need)
	}
}

// check reports the first ref with the zero key, of no page group, of a page out of range or, with
// unique, of a page that one before it names. items has the refs' groups.
func (b *pageSet) check(refs []Ref, items []item, formats block.Formats, unique bool) error {
	var err error
	n := 0
	for ; n < len(refs); n++ {
		r, g := &refs[n], int(items[n].group)
		if err = r.Key.Check(); err != nil {
			err = fmt.Errorf("ref %d: %w", n, err)
			break
		}
		if g >= len(formats) {
			_, err = formats.Of(r.Key)
			err = fmt.Errorf("ref %d: %w", n, err)
			break
		}
		if pages := b.counts[g]; int64(r.Page) >= pages {
			err = fmt.Errorf("ref %d (block %s): page %d of %d: %w", n, r.Key, r.Page, pages, errdefs.ErrInvalid)
			break
		}
		if !unique {
			continue
		}
		word, mask := b.bit(r, g)
		if *word&mask != 0 {
			err = fmt.Errorf("ref %d (block %s): page %d is named twice: %w", n, r.Key, r.Page, errdefs.ErrInvalid)
			break
		}
		*word |= mask
	}
	for i := 0; unique && i < n; i++ {
		word, _ := b.bit(&refs[i], int(items[i].group))
		*word = 0
	}
	return err
}

// bit returns where the set has the page of a ref, which is of that page group.
func (b *pageSet) bit(r *Ref, group int) (word *uint64, mask uint64) {
	at := b.bases[group] + int64(r.Page)
	return &b.bits[at/64], 1 << (at % 64)
}
