package kvcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Painter fills pages with patterns and compares them, on one queue of the device. Each call waits for the device, so
// that its scratch memory is free again when it returns. One user at a time.
//
// Where the queue launches kernels, pages never leave the device; else they go through staging, a plane at a time.
type Painter struct {
	cache *Cache
	queue device.Queue
	// kernels is the same queue, or nil where the device runs none.
	kernels  device.Launcher
	most     int // pages of one call
	scratch  *mem.Region
	stage    mem.Extent // one plane
	pairs    mem.Extent // {u32 page, u32 index} a page
	seeds    mem.Extent // u64 a page
	counts   mem.Extent // u64 a page
	compared int        // pages of the last Compare, of which Compared was not called
	dead     bool       // work may still run on the queue: nothing of it may be freed
}

// Span is a range of a cache's planes: one layer, or all of them.
type Span struct{ First, Count int }

// NewPainter opens a painter that takes up to most pages at a time. Close it.
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

// Fill writes the pattern of seeds[i] into the span's planes of pages[i].
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

// Check adds to wrong[i] the number of bytes of pages[i], in the span's planes, that are not the pattern of seeds[i].
func (p *Painter) Check(ctx context.Context, s Span, pages []uint32, seeds []uint64, wrong []int64) error {
	if err := p.Compare(ctx, s, pages, seeds); err != nil {
		return err
	}
	return p.Compared(ctx, wrong)
}

// Compare begins what Compared ends: together they are Check. Between the two, the painter is used for nothing else and nobody writes to
// the pages.
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
			n, _ := wrongBytes(p.stage.Bytes(), seeds[i], pl)
			total += n
		}
		binary.LittleEndian.PutUint64(counts[8*i:], uint64(total))
	}
	return nil
}

// Compared waits for the last Compare, and adds to wrong[i] what it has counted of the i-th page.
func (p *Painter) Compared(ctx context.Context, wrong []int64) error {
	if p.compared > 0 && p.kernels != nil {
		if err := p.finish(ctx); err != nil {
			return err
		}
	}
	counts := p.counts.Bytes()
	for i := range p.compared {
		wrong[i] += int64(binary.LittleEndian.Uint64(counts[8*i:]))
	}
	p.compared = 0
	return nil
}

// Locate returns where page first differs from the pattern of seed: the plane, and the offset in it; or plane -1.
func (p *Painter) Locate(ctx context.Context, page uint32, seed uint64) (plane int, off int64, err error) {
	for pl := range p.cache.planes {
		if err := p.copy(ctx, p.stage, p.cache.planes[pl].Page(page)); err != nil {
			return -1, -1, fmt.Errorf("read page %d back: %w", page, err)
		}
		if _, first := wrongBytes(p.stage.Bytes(), seed, pl); first >= 0 {
			return pl, first, nil
		}
	}
	return -1, -1, nil
}

// launch has the pattern kernel fill pages, or count what is wrong with them at the address counts.
func (p *Painter) launch(counts mem.DevAddr, s Span, pages []uint32, seeds []uint64) error {
	pairs, words := p.pairs.Bytes(), p.seeds.Bytes()
	for i, page := range pages {
		device.PutPair(pairs[device.PairBytes*i:], page, uint32(i))
		// The kernel counts planes from the first it is given.
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

// finish waits until everything enqueued has run.
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

// Dead reports whether work may still run that has not ended in time: nothing that it touches may be used again.
func (p *Painter) Dead() bool { return p.dead }

// Close waits until the queue is idle and frees the scratch memory. If ctx ends first, nothing is freed.
func (p *Painter) Close(ctx context.Context) error {
	if err := p.queue.Close(ctx); err != nil {
		return fmt.Errorf("close the queue of patterns: %w", err)
	}
	return p.cache.dev.Free(p.scratch)
}
