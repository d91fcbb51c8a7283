package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// check verifies the destination after the last repetition.
func (r *rig) check(ctx context.Context, p *plan) error {
	dst, src := r.ends(p.dir)
	switch {
	case dst.onHost():
		return p.checkBlocks(dst.dst.Bytes(), src.tag, 0)
	case dst.checker != nil:
		return dst.checker.check(ctx, dst, src.tag, p)
	}
	return dst.checkByReading(ctx, src.tag, p)
}

// checkByReading verifies device memory by copying it to the host in large parts.
func (s *side) checkByReading(ctx context.Context, tag uint64, p *plan) error {
	for chunk := range chunks(p.dstSpan, s.scratch.Len()/p.Size*p.Size) {
		staged := mem.Extent{Region: s.scratch, Len: chunk.Len}
		if err := s.copyOne(ctx, staged, mem.Extent{Region: s.dst, Off: chunk.Off, Len: chunk.Len}); err != nil {
			return fmt.Errorf("read device memory back: %w", err)
		}
		if err := p.checkBlocks(staged.Bytes(), tag, chunk.Off); err != nil {
			return err
		}
	}
	return nil
}

// checkBlocks compares the blocks of the batches with the source. b is the destination memory from
// offset start on.
func (p *plan) checkBlocks(b []byte, tag uint64, start int64) error {
	return Parallel(int64(p.Count), func(first, last int64) error {
		for i := int(first); i < int(last); i++ {
			off, from := p.Offs(i)
			off -= start
			if off < 0 || off >= int64(len(b)) {
				continue
			}
			if err := CheckPattern(b[off:][:p.Size], tag, from); err != nil {
				return fmt.Errorf("block %d of %d: %w", i, p.Count, err)
			}
		}
		return nil
	})
}

// checkStep is the number of blocks that one launch of the checker compares. The checker's memory
// has one plane, then pairs, seeds and counts.
const (
	checkStep    = 32 << 10
	pairsAt      = device.PlaneDescBytes
	seedsAt      = pairsAt + checkStep*device.PairBytes
	countsAt     = seedsAt + checkStep*wordBytes
	checkerBytes = countsAt + checkStep*wordBytes
)

// checker compares device memory with the pattern using device.KernelPatternCheck. This is much
// faster than copying the memory to the host.
type checker struct {
	launcher device.Launcher
	memory   *mem.Region
}

// check compares the blocks that p copied to s with the pattern of a source.
func (c *checker) check(ctx context.Context, s *side, tag uint64, p *plan) error {
	b, le := c.memory.Bytes(), binary.LittleEndian
	device.PlaneDesc{Base: s.dst.Dev(), Stride: uint64(p.Size), Bytes: uint64(p.Size)}.Put(b)
	for first := 0; first < p.Count; first += checkStep {
		n := min(checkStep, p.Count-first)
		for i := range n {
			to, from := p.Offs(first + i)
			device.PutPair(b[pairsAt+device.PairBytes*i:], uint32(to/p.Size), uint32(i))
			le.PutUint64(b[seedsAt+8*i:], tag+uint64(from)/wordBytes)
		}
		clear(b[countsAt : countsAt+8*n])
		at := c.memory.Dev()
		k := device.PatternArgs{
			Planes: at, NPlanes: 1, Pairs: at + pairsAt, NPairs: uint64(n), Seeds: at + seedsAt, Counts: at + countsAt,
		}.Kernel()
		if err := c.launcher.Launch(&k); err != nil {
			return fmt.Errorf("check device memory: %w", err)
		}
		if err := s.drain(ctx); err != nil {
			return fmt.Errorf("check device memory: %w", err)
		}
		for i := range n {
			if mismatched := le.Uint64(b[countsAt+8*i:]); mismatched != 0 {
				return s.describeMismatch(ctx, tag, p, first+i, mismatched)
			}
		}
	}
	return nil
}

// describeMismatch copies a wrong block to the host and returns an error that describes the
// difference.
func (s *side) describeMismatch(ctx context.Context, tag uint64, p *plan, block int, bytes uint64) error {
	to, from := p.Offs(block)
	staged := mem.Extent{Region: s.scratch, Len: p.Size}
	err := s.copyOne(ctx, staged, mem.Extent{Region: s.dst, Off: to, Len: p.Size})
	if err == nil {
		err = CheckPattern(staged.Bytes(), tag, from)
	}
	switch {
	case err == nil:
		err = fmt.Errorf("it reads back right: %w", errdefs.ErrCorrupt)
	case !errors.Is(err, errdefs.ErrCorrupt):
		err = fmt.Errorf("%w, and reading it back: %w", errdefs.ErrCorrupt, err)
	}
	return fmt.Errorf("block %d of %d has %d wrong bytes: %w", block, p.Count, bytes, err)
}
