package pages

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Pages describes a paged KV cache in device memory. It must not change while a task uses it.
type Pages struct {
	// Shards[k] holds the planes of layer k of the model. With one page group, that is shard k of a
	// block. SlotOff of a plane is relative to the start of a block image of the layer's group. If
	// the layer is shard i of these blocks, the planes cover [Layout.ShardOff(i),
	// +Layout.ShardBytes(i)) of that group's layout without overlap.
	//
	// Page groups may use the same memory, as long as pages in use of two groups share no bytes.
	Shards [][]mem.Plane
}

// Ref pairs a block with the page from which or to which it is copied. The page belongs to the
// block's page group, which follows from the key.
type Ref struct {
	Key  block.Key
	Page uint32
}

// Validate checks the planes against the layouts. It returns ErrInvalid with the shard and the
// plane of the first problem.
func (p *Pages) Validate(m *Map) error {
	if p == nil || len(p.Shards) != len(m.shards) {
		n := 0
		if p != nil {
			n = len(p.Shards)
		}
		return fmt.Errorf("pages have %d shards and blocks have %d: %w", n, len(m.shards), errdefs.ErrInvalid)
	}
	for i, planes := range p.Shards {
		w := m.shards[i]
		l := m.Formats[w.Group].Layout
		start, end := l.ShardOff(w.Index), l.ShardOff(w.Index)+l.ShardBytes(w.Index)
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
		// A gap would keep the previous content of the slot, and would be stored and summed with
		// it.
		if want := l.ShardBytes(w.Index); sum != want {
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
			space := pl.Region.Len() - pl.Base - pl.Bytes
			if space < 0 {
				return 0
			}
			n = min(n, space/pl.Stride+1)
		}
	}
	return n
}

// overlap reports whether two page groups share pages. It assumes that planes of both groups with
// the same memory have the same pages.
func (p *Pages) overlap(a, b []int) bool {
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

// Checker validates refs. It reuses its memory. The zero value is ready for Reset.
type Checker struct {
	m      *Map
	unique bool
	bits   []uint64 // pages that refs name; all zero between calls of Check
	counts []int64  // by page group: number of pages
	bases  []int64  // by page group: bit of page 0; equal for groups that share pages
}

// Reset prepares c for refs to these pages. If unique is set, each page may be named only once.
func (c *Checker) Reset(m *Map, p *Pages, unique bool) {
	c.m, c.unique = m, unique
	c.counts, c.bases = c.counts[:0], c.bases[:0]
	most := int64(0)
	for g := range m.Layers {
		c.counts = append(c.counts, p.count(m.Layers[g]))
		most = max(most, c.counts[g])
	}
	if !unique {
		return
	}
	for g := range m.Layers {
		c.bases = append(c.bases, int64(g)*most)
		for o := range g {
			if p.overlap(m.Layers[o], m.Layers[g]) {
				c.bases[g] = c.bases[o]
				break
			}
		}
	}
	if need := (int64(len(m.Layers))*most + 63) / 64; int64(len(c.bits)) < need {
		c.bits = make([]uint64, need)
	}
}

// Check returns an error for the first ref with the zero key, a key of no page group, a page out of
// range, or a page that an earlier ref names. groups has the page group of each ref.
func (c *Checker) Check(refs []Ref, groups []uint8) error {
	var err error
	n := 0
	for ; n < len(refs); n++ {
		r, g := &refs[n], int(groups[n])
		if err = r.Key.Check(); err != nil {
			err = fmt.Errorf("ref %d: %w", n, err)
			break
		}
		if g >= len(c.m.Formats) {
			_, err = c.m.Formats.Of(r.Key)
			err = fmt.Errorf("ref %d: %w", n, err)
			break
		}
		if pages := c.counts[g]; int64(r.Page) >= pages {
			err = fmt.Errorf("ref %d (block %s): page %d of %d: %w", n, r.Key, r.Page, pages, errdefs.ErrInvalid)
			break
		}
		if !c.unique {
			continue
		}
		word, mask := c.bit(r, g)
		if *word&mask != 0 {
			err = fmt.Errorf("ref %d (block %s): page %d is given twice: %w", n, r.Key, r.Page, errdefs.ErrInvalid)
			break
		}
		*word |= mask
	}
	for i := 0; c.unique && i < n; i++ {
		word, _ := c.bit(&refs[i], int(groups[i]))
		*word = 0
	}
	return err
}

// bit returns the bit of the ref's page. group is its page group.
func (c *Checker) bit(r *Ref, group int) (word *uint64, mask uint64) {
	at := c.bases[group] + int64(r.Page)
	return &c.bits[at/64], 1 << (at % 64)
}
