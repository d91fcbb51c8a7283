package nic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
)

// TestSeededInterleavings runs loads and dumps of every shape on one queue pair, or on four of two
// NICs, and cancels some. The NICs start and complete requests in a seeded order. The bytes must
// always be those of the order of submission.
func TestSeededInterleavings(t *testing.T) {
	for seed := range uint64(32) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newProgram(t, seed).run(40) })
	}
}

// program copies between a host region and two device regions, and records their expected content.
type program struct {
	testing.TB
	rng                      *rand.Rand
	s                        *nic.Stream
	host, gpu, second, waste *mem.Region // host is in host memory, the others are in device memory
	want                     map[*mem.Region][]byte
}

const (
	gpuBytes  = 1024
	hostBytes = 2 * gpuBytes
)

func newProgram(t *testing.T, seed uint64) *program {
	t.Helper()
	pairs := 1 + int(seed/2%2) // with one queue pair, paged batches are merged along the slots
	g := newRig(t, rigOptions{nics: pairs, soft: soft.Options{Schedule: &soft.Schedule{Seed: seed}}})
	p := &program{
		TB: t, rng: rand.New(rand.NewPCG(seed, 3)),
		s:    g.openUntilEnd(t, nic.Options{QueuePairs: pairs, StripeBytes: stripe, SendDepth: 8, MaxSGE: 1 + int(seed%3)}),
		host: g.pinned(t, hostBytes), gpu: g.device(t, gpuBytes), second: g.device(t, gpuBytes), waste: g.device(t, gpuBytes),
	}
	for i := range p.host.Bytes() {
		p.host.Bytes()[i] = byte(p.rng.Uint32())
	}
	p.want = map[*mem.Region][]byte{
		p.host: append([]byte(nil), p.host.Bytes()...), p.gpu: make([]byte, gpuBytes), p.second: make([]byte, gpuBytes),
	}
	return p
}

func (p *program) run(steps int) {
	p.Helper()
	first := mem.All(p.host).Sub(0, gpuBytes)
	for _, r := range []*mem.Region{p.gpu, p.second} { // set a known content
		p.submit(&mem.Batch{Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{first}})
	}
	for range steps {
		switch p.rng.IntN(7) {
		case 0:
			p.submit(p.list(p.gpu, p.host))
		case 1:
			p.submit(p.list(p.host, p.gpu))
		case 2:
			p.submit(p.paged(mem.ToPages))
		case 3:
			p.submit(p.paged(mem.ToSlots))
		case 4:
			p.submit(p.list(p.gpu, p.second))
		case 5:
			p.submit(p.list(p.second, p.gpu))
		default:
			submit(p, p.s, p.list(p.waste, p.host)).Cancel()
		}
	}
	ok(p, p.submit(&mem.Batch{}))
	p.check()
	for _, r := range []*mem.Region{p.gpu, p.second} {
		ok(p, p.submit(&mem.Batch{Dst: []mem.Extent{first}, Src: []mem.Extent{mem.All(r)}}))
		p.check()
	}
}

// submit submits b and applies its copies to the expected content.
func (p *program) submit(b *mem.Batch) *stream.Ticket {
	p.Helper()
	t := submit(p, p.s, b)
	for dst, src := range b.Extents() {
		copy(p.want[dst.Region][dst.Off:dst.Off+dst.Len], p.want[src.Region][src.Off:])
	}
	return t
}

// check compares the host region with the expected content.
func (p *program) check() {
	p.Helper()
	for i, b := range p.host.Bytes() {
		if b != p.want[p.host][i] {
			p.Fatalf("byte %d is %#02x, want %#02x", i, b, p.want[p.host][i])
		}
	}
}

// list returns a batch of random pieces. Pieces of one side may be adjacent.
func (p *program) list(dst, src *mem.Region) *mem.Batch {
	var b mem.Batch
	to, from := p.rng.Int64N(300), p.rng.Int64N(300)
	neighbours := []*mem.Region{nil, dst, src}[p.rng.IntN(3)]
	for range 1 + p.rng.IntN(12) {
		n := p.rng.Int64N(100)
		if neighbours != src {
			from = p.rng.Int64N(src.Len() - n)
		}
		if to+n > dst.Len() || from+n > src.Len() {
			break
		}
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: to, Len: n})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: from, Len: n})
		if to, from = to+n, from+n; neighbours != dst {
			to += p.rng.Int64N(9)
		}
	}
	if neighbours == nil {
		p.rng.Shuffle(len(b.Dst), func(i, j int) {
			b.Dst[i], b.Dst[j], b.Src[i], b.Src[j] = b.Dst[j], b.Dst[i], b.Src[j], b.Src[i]
		})
	}
	return &b
}

// paged returns a batch that copies some of 8 pages of two planes to or from slots.
func (p *program) paged(dir mem.Direction) *mem.Batch {
	g := mem.PageGroup{
		Planes: []mem.Plane{{Region: p.gpu, Stride: 60, Bytes: 50}, {Region: p.gpu, Base: 500, Stride: 64, Bytes: 33, SlotOff: 50}},
		Slots:  mem.Slots{Region: p.host, Base: 7, Stride: 90},
	}
	pages, slots := p.rng.Perm(8), p.rng.Perm(20)
	for i := range 1 + p.rng.IntN(8) {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(pages[i]), Slot: uint32(slots[i])})
	}
	return &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{g}}}
}

// TestLastLoadStays loads adjacent host bytes to scattered places, from slots or by a list. Right
// after that it loads other bytes to the same places with the other opcode. The places must hold
// the bytes of the second load, however late the first completes.
func TestLastLoadStays(t *testing.T) {
	for seed := range uint64(32) {
		g := newRig(t, rigOptions{soft: soft.Options{Schedule: &soft.Schedule{Seed: seed}}})
		s := g.openUntilEnd(t, nic.Options{})
		const pages, page = 4, 16
		gpu, first, last, back := g.device(t, pages*page), g.pinned(t, pages*page), g.pinned(t, pages*page), g.pinned(t, pages*page)
		for i := range last.Bytes() {
			last.Bytes()[i] = byte(i + 1)
		}
		group := mem.PageGroup{
			Slots:  mem.Slots{Region: first, Stride: page},
			Planes: []mem.Plane{{Region: gpu, Stride: page, Bytes: 8}, {Region: gpu, Base: 8, Stride: page, Bytes: 8, SlotOff: 8}},
		}
		for i := range uint32(pages) {
			group.Pairs = append(group.Pairs, mem.PageSlot{Page: pages - 1 - i, Slot: i})
		}
		load := &mem.Batch{Paged: &mem.Paged{Dir: mem.ToPages, Groups: []mem.PageGroup{group}}}
		if seed%2 == 1 {
			list := new(mem.Batch)
			for dst, src := range load.Extents() {
				list.Dst, list.Src = append(list.Dst, dst), append(list.Src, src)
			}
			load = list
		}
		submit(t, s, load)
		submit(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(gpu)}, Src: []mem.Extent{mem.All(last)}})
		ok(t, submit(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(back)}, Src: []mem.Extent{mem.All(gpu)}}))
		if !bytes.Equal(back.Bytes(), last.Bytes()) {
			t.Fatalf("seed %d: the pages hold %d", seed, back.Bytes())
		}
	}
}
