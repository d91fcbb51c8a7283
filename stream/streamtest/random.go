package streamtest

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// testRandom runs seeded programs on three streams. Batches of every shape use the results of
// others, and some are canceled. Each use of a region depends on the previous one, so only one
// result is correct, that of the order of submission.
func testRandom(t *testing.T, env Env) {
	for seed := range uint64(6) {
		newProgram(t, env, 1000+seed).run(60)
	}
}

type program struct {
	*world
	streams  []stream.Stream
	regions  []*mem.Region
	last     map[*mem.Region]*stream.Ticket
	waste    *mem.Region // destination of canceled batches; its bytes are undefined
	toCancel []*stream.Ticket
}

func newProgram(t *testing.T, env Env, seed uint64) *program {
	t.Helper()
	w := newWorld(t, env, 8, seed)
	p := &program{world: w, streams: []stream.Stream{w.s, w.open(8), w.open(0)}, last: make(map[*mem.Region]*stream.Ticket)}
	for i := range 6 {
		m := env.A
		if i%2 == 0 {
			m = env.B
		}
		p.regions = append(p.regions, w.region(m, 4096))
	}
	p.waste = env.B.Alloc(t, 4096) // not in the model
	return p
}

func (p *program) run(steps int) {
	p.Helper()
	for range steps {
		p.s = p.streams[p.rng.IntN(len(p.streams))]
		to, from := p.rng.IntN(len(p.regions)), p.rng.IntN(len(p.regions))
		if p.env.Unordered && to%2 == from%2 {
			continue // same memory
		}
		dst, src := p.regions[to], p.regions[from]
		if p.rng.IntN(5) == 0 && (!p.env.Unordered || from%2 == 1) {
			ticket := p.submitOnly(&mem.Batch{
				Dst: []mem.Extent{mem.All(p.waste)}, Src: []mem.Extent{mem.All(src)}, After: p.after(src),
			})
			p.toCancel = append(p.toCancel, ticket)
			if p.rng.IntN(2) == 0 {
				p.cancelMarked()
			}
			continue
		}
		if dst == src {
			continue
		}
		b := p.shape(dst, src)
		b.After = p.after(dst, src)
		ticket := p.submit(b)
		p.last[dst], p.last[src] = ticket, ticket
		if p.rng.IntN(10) == 0 {
			p.ok(ticket)
		}
	}
	p.cancelMarked()
	for _, ticket := range p.last {
		p.ok(ticket)
	}
	p.check()
}

func (p *program) shape(dst, src *mem.Region) *mem.Batch {
	switch p.rng.IntN(3) {
	case 0:
		return whole(dst, src)
	case 1:
		return p.scatter(dst, src, 1+p.rng.IntN(60), func(int) int64 { return p.rng.Int64N(50) })
	}
	const pages = 8
	size := 1 + p.rng.Int64N(dst.Len()/pages)
	slots, planes, dir := dst, src, mem.ToSlots
	if p.rng.IntN(2) == 0 {
		slots, planes, dir = src, dst, mem.ToPages
	}
	g := mem.PageGroup{
		Slots:  mem.Slots{Region: slots, Stride: size},
		Planes: []mem.Plane{{Region: planes, Stride: size, Bytes: size / 2}, {Region: planes, Base: size / 2, Stride: size, Bytes: size - size/2, SlotOff: size / 2}},
	}
	// Keep the last page of the second plane inside the region.
	g.Planes[1].Bytes = min(g.Planes[1].Bytes, size/2)
	from, to := p.rng.Perm(pages), p.rng.Perm(pages)
	for i := range 1 + p.rng.IntN(pages) {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(from[i]), Slot: uint32(to[i])})
	}
	return &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{g}}}
}

// after returns the last uses of the regions. It first ends the batches that are to be canceled, so
// that later batches need not depend on their reads.
func (p *program) after(regions ...*mem.Region) []mem.Dependency {
	p.Helper()
	p.cancelMarked()
	var after []mem.Dependency
	for _, r := range regions {
		if t := p.last[r]; t != nil {
			after = append(after, t)
		}
	}
	return after
}

// cancelMarked cancels the batches in toCancel and waits for them.
func (p *program) cancelMarked() {
	p.Helper()
	for _, t := range p.toCancel {
		t.Cancel()
		if err := t.Wait(deadline(p)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
			p.Fatalf("cancelled ticket: %v", err)
		}
	}
	p.toCancel = nil
}
