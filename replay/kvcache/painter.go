package kvcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Painter fills pages with patterns and compares pages with patterns, on one queue of the device.
// Each method except Compare waits for the device. A Painter is not safe for concurrent use.
//
// If the queue can launch kernels, the data stays on the device. Otherwise each plane of a page is
// copied through staging memory.
type Painter struct {
	cache *Cache
	queue device.Queue
	// kernels is queue, or nil if the device does not support kernels.
	kernels  device.Launcher
	most     int // maximum number of pages in a call
	scratch  *mem.Region
	stage    mem.Extent // one plane
	pairs    mem.Extent // {u32 page, u32 index} for each page
	seeds    mem.Extent // u64 for each page
	counts   mem.Extent // u64 for each page
	compared int        // pages of a Compare without its Compared
	dead     bool       // work may still run on the queue and access the memory
}

// Span is a range of a cache's planes: one layer, or all of them.
type Span struct{ First, Count int }

// NewPainter returns a painter for at most most pages per call. The caller closes it.
func NewPainter(c *Cache, most int) (_ *Painter, err error) {
	p := &Painter{cache: c, most: max(most, 1)}
	if p.queue, err = c.dev.OpenQueue(device.QueueOptions{}); err != nil {
		return nil, fmt.Errorf("open a queue for patterns: %w", err)
	}
	p.kernels, _ = p.queue.(device.Launcher)
	stage := (c.planes[0].Bytes + 63) &^ 63
	n := int64(p.most)
	if p.scratch, err = c.dev.AllocHost(stage + n*(device.PairBytes+8+8)); err != nil {
		err = fmt.Errorf("allocate pinned scratch for %d pages: %w", n, err)
		return nil, errors.Join(err, p.queue.Close(context.Background()))
	}
	all := mem.All(p.scratch)
	p.stage = all.Sub(0, c.planes[0].Bytes)
	p.seeds = all.Sub(stage, 8*n)
	p.counts = all.Sub(stage+8*n, 8*n)
	p.pairs = all.Sub(stage+16*n, device.PairBytes*n)
	return p, nil
}

// Fill writes the pattern of seeds[i] to pages[i], in the planes of s.
func (p *Painter) Fill(ctx context.Context, s Span, pages []uint32, seeds []uint64) error {
	if len(pages) == 0 {
		return nil
	}
	if p.kernels != nil {
		if err := p.launch(0, s, pages, seeds); err != nil {
			return err
		}
		return p.finish(ctx)
	}
	for i, page := range pages {
		for pl := s.First; pl < s.First+s.Count; pl++ {
			pattern(p.stage.Bytes(), seeds[i], pl)
			if err := p.copy(ctx, p.cache.planes[pl].Page(page), p.stage); err != nil {
				return fmt.Errorf("fill page %d: %w", page, err)
			}
		}
	}
	return nil
}

// Check adds to mismatched[i] the number of bytes of pages[i], in the planes of s, that differ from
// the pattern of seeds[i].
func (p *Painter) Check(ctx context.Context, s Span, pages []uint32, seeds []uint64, mismatched []int64) error {
	if err := p.Compare(ctx, s, pages, seeds); err != nil {
		return err
	}
	return p.Compared(ctx, mismatched)
}

// Compare starts a check, and Compared completes it. Between the two calls the painter must not be
// used and the pages must not be written.
func (p *Painter) Compare(ctx context.Context, s Span, pages []uint32, seeds []uint64) error {
	counts := p.counts.Bytes()[:8*len(pages)]
	clear(counts)
	p.compared = len(pages)
	switch {
	case len(pages) == 0:
		return nil
	case p.kernels != nil:
		return p.launch(p.counts.Dev(), s, pages, seeds)
	}
	for i, page := range pages {
		total := int64(0)
		for pl := s.First; pl < s.First+s.Count; pl++ {
			if err := p.copy(ctx, p.stage, p.cache.planes[pl].Page(page)); err != nil {
				return fmt.Errorf("check page %d: %w", page, err)
			}
			n, _ := mismatchedBytes(p.stage.Bytes(), seeds[i], pl)
			total += n
		}
		binary.LittleEndian.PutUint64(counts[8*i:], uint64(total))
	}
	return nil
}

// Compared waits for the last Compare. It adds the number of wrong bytes of page i to
// mismatched[i].
func (p *Painter) Compared(ctx context.Context, mismatched []int64) error {
	if p.compared > 0 && p.kernels != nil {
		if err := p.finish(ctx); err != nil {
			return err
		}
	}
	counts := p.counts.Bytes()
	for i := range p.compared {
		mismatched[i] += int64(binary.LittleEndian.Uint64(counts[8*i:]))
	}
	p.compared = 0
	return nil
}

// Locate returns the plane and the offset at which page first differs from the pattern of seed.
// plane is -1 if it does not differ.
func (p *Painter) Locate(ctx context.Context, page uint32, seed uint64) (plane int, off int64, err error) {
	for pl := range p.cache.planes {
		if err := p.copy(ctx, p.stage, p.cache.planes[pl].Page(page)); err != nil {
			return -1, -1, fmt.Errorf("read page %d back: %w", page, err)
		}
		if _, first := mismatchedBytes(p.stage.Bytes(), seed, pl); first >= 0 {
			return pl, first, nil
		}
	}
	return -1, -1, nil
}

// launch starts the pattern kernel. If counts is 0, the kernel fills the pages. Otherwise it writes
// the numbers of wrong bytes to that address.
func (p *Painter) launch(counts mem.DevAddr, s Span, pages []uint32, seeds []uint64) error {
	pairs, words := p.pairs.Bytes(), p.seeds.Bytes()
	for i, page := range pages {
		device.PutPair(pairs[device.PairBytes*i:], page, uint32(i))
		// The kernel counts planes from the first one of the span.
		binary.LittleEndian.PutUint64(words[8*i:], planeSeed(seeds[i], s.First))
	}
	k := device.PatternArgs{
		Planes: p.cache.planeDesc.Dev() + mem.DevAddr(s.First)*device.PlaneDescBytes, NPlanes: uint64(s.Count),
		Pairs: p.pairs.Dev(), NPairs: uint64(len(pages)), Seeds: p.seeds.Dev(), Counts: counts,
	}.Kernel()
	if err := p.kernels.Launch(&k); err != nil {
		return fmt.Errorf("launch %s on %d pages: %w", k.Name, len(pages), err)
	}
	return nil
}

func (p *Painter) copy(ctx context.Context, dst, src mem.Extent) error {
	if err := p.queue.Copy(dst, src); err != nil {
		return err
	}
	return p.finish(ctx)
}

// finish waits until all enqueued work has completed.
func (p *Painter) finish(ctx context.Context) error {
	if p.dead {
		return errors.New("the queue of patterns did not finish earlier work")
	}
	ev, err := p.queue.Record()
	if err != nil {
		p.dead = true
		return err
	}
	defer ev.Close()
	if err := ev.Wait(ctx); err != nil {
		if done, _ := ev.Done(); !done {
			p.dead = true
		}
		return fmt.Errorf("wait for the queue of patterns: %w", err)
	}
	return nil
}

// Dead reports whether work that did not complete in time may still run. The memory that it
// accesses must not be used again.
func (p *Painter) Dead() bool { return p.dead }

// Close waits until the queue is idle and frees the memory. If it fails, nothing is freed.
func (p *Painter) Close(ctx context.Context) error {
	if err := p.queue.Close(ctx); err != nil {
		return fmt.Errorf("close the queue of patterns: %w", err)
	}
	return p.cache.dev.Free(p.scratch)
}
