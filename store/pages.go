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
	// Shards[i] holds the planes that make up shard i of a block. SlotOff counts from the image's start, so it lies in
	// [Layout.ShardOff(i), +Layout.ShardBytes(i)). The planes of a shard cover it without overlap.
	Shards [][]mem.Plane
}

// Validate checks the planes against the layout. Errors wrap ErrInvalid and name shard and plane.
func (p *Pages) Validate(l *block.Layout) error {
	if p == nil || len(p.Shards) != l.Shards() {
		n := 0
		if p != nil {
			n = len(p.Shards)
		}
		return fmt.Errorf("pages have %d shards and blocks have %d: %w", n, l.Shards(), errdefs.ErrInvalid)
	}
	for i, planes := range p.Shards {
		start, end := l.ShardOff(i), l.ShardOff(i)+l.ShardBytes(i)
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
		if sum != l.ShardBytes(i) {
			return fmt.Errorf("shard %d has planes of %d bytes for %d: %w", i, sum, l.ShardBytes(i), errdefs.ErrInvalid)
		}
	}
	return nil
}

// count returns the number of pages that every plane has.
func (p *Pages) count() int64 {
	n := int64(math.MaxUint32) + 1
	for _, planes := range p.Shards {
		for i := range planes {
			pl := &planes[i]
			room := pl.Region.Len() - pl.Base - pl.Bytes
			if room < 0 {
				return 0
			}
			n = min(n, room/pl.Stride+1)
		}
	}
	return n
}

// Ref pairs a block with the page that holds, or will hold, its bytes.
type Ref struct {
	Key  block.Key
	Page uint32
}

// bitset finds pages that a load names twice: their bytes would be a mixture of two blocks.
type bitset []uint64

// checkRefs reports the first ref that is out of range, and with unique the first page named twice.
func (b *bitset) checkRefs(refs []Ref, pages int64, unique bool) error {
	for i := range refs {
		if int64(refs[i].Page) >= pages {
			return fmt.Errorf("ref %d (block %s): page %d of %d: %w", i, refs[i].Key, refs[i].Page, pages, errdefs.ErrInvalid)
		}
	}
	if !unique {
		return nil
	}
	if need := int((pages + 63) / 64); len(*b) < need {
		*b = make([]uint64, need)
	}
	var err error
	n := 0
	for n < len(refs) {
		word, bit := &(*b)[refs[n].Page/64], uint64(1)<<(refs[n].Page%64)
		if *word&bit != 0 {
			err = fmt.Errorf("ref %d (block %s): page %d is named twice: %w", n, refs[n].Key, refs[n].Page, errdefs.ErrInvalid)
			break
		}
		*word |= bit
		n++
	}
	for i := range refs[:n] {
		(*b)[refs[i].Page/64] = 0
	}
	return err
}
