package nic_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// BenchmarkRequest measures the cost of a work request on a NIC that copies nothing, including the
// NIC's own work. It loads scattered pages in batches of different sizes, with up to 16 batches in
// flight. With sges=1 each request has one block, so that ns/block is the cost of a request. By
// default requests have several blocks.
func BenchmarkRequest(b *testing.B) {
	const page = 4096
	for _, c := range []struct {
		pairs, sges int
		lists       bool
	}{{1, 1, false}, {1, 1, true}, {1, nic.DefaultMaxSGE, false}, {4, nic.DefaultMaxSGE, false}} {
		for _, n := range []int{64, 1024} {
			b.Run(fmt.Sprintf("pairs=%d/sges=%d/lists=%t/pieces=%d", c.pairs, c.sges, c.lists, n), func(b *testing.B) {
				g := newRig(b, rigOptions{null: true})
				s := g.openUntilEnd(b, nic.Options{QueuePairs: c.pairs, MaxSGE: c.sges, StripeBytes: 16 << 10})
				size := int64(n) * page
				all := blocks(g.pinned(b, size), g.device(b, size), mem.ToPages, page)
				benchmarkBatches(b, s, batches(all, c.lists, size), 16)
			})
		}
	}
}

// blocks returns a batch that pairs every page, in random order, with a slot.
func blocks(slots, pages *mem.Region, dir mem.Direction, size int64) *mem.Batch {
	n := int(pages.Len() / size)
	g := mem.PageGroup{
		Planes: []mem.Plane{{Region: pages, Stride: size, Bytes: size}}, Slots: mem.Slots{Region: slots, Stride: size},
	}
	for i, page := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(page), Slot: uint32(i)})
	}
	return &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{g}}}
}

// batches splits b into batches of the given number of bytes. With lists, the slots are shuffled
// too and each batch is a list.
func batches(b *mem.Batch, lists bool, bytes int64) []*mem.Batch {
	g := &b.Paged.Groups[0]
	n := int(bytes / g.Planes[0].Bytes)
	if lists {
		rng := rand.New(rand.NewPCG(3, 4))
		rng.Shuffle(len(g.Pairs), func(i, j int) { g.Pairs[i].Slot, g.Pairs[j].Slot = g.Pairs[j].Slot, g.Pairs[i].Slot })
	}
	var all []*mem.Batch
	for pairs := range slices.Chunk(g.Pairs, n) {
		part := *g
		part.Pairs = pairs
		p := &mem.Batch{Paged: &mem.Paged{Dir: b.Paged.Dir, Groups: []mem.PageGroup{part}}}
		if lists {
			l := new(mem.Batch)
			for dst, src := range p.Extents() {
				l.Dst, l.Src = append(l.Dst, dst), append(l.Src, src)
			}
			p = l
		}
		all = append(all, p)
	}
	return all
}

// benchmarkBatches keeps under batches of equal length in flight.
func benchmarkBatches(b *testing.B, s *nic.Stream, batches []*mem.Batch, under int) {
	b.Helper()
	b.ReportAllocs()
	ctx := b.Context()
	wait := func(t *stream.Ticket) {
		if err := t.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
	tickets := make([]*stream.Ticket, 0, under)
	begun := cpuTime(b)
	start := time.Now()
	b.ResetTimer() // b.Loop would not include the batches that are in flight at the end
	for i := range b.N {
		if len(tickets) == under {
			wait(tickets[0])
			tickets = append(tickets[:0], tickets[1:]...)
		}
		t, err := s.Submit(ctx, batches[i%len(batches)])
		if err != nil {
			b.Fatal(err)
		}
		tickets = append(tickets, t)
	}
	for _, t := range tickets {
		wait(t)
	}
	b.StopTimer()
	blocks := float64(b.N) * float64(batches[0].Pieces())
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/blocks, "ns/block")
	b.ReportMetric(float64(cpuTime(b)-begun)/blocks, "cpu-ns/block")
	b.ReportMetric(float64(cpuTime(b)-begun)/float64(time.Since(start)), "cpus")
}

// cpuTime returns the CPU time of the process. Other processes affect it less than elapsed time.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRoundTrip measures one small batch from Submit to the end of Wait.
func BenchmarkRoundTrip(b *testing.B) {
	g := newRig(b, rigOptions{null: true})
	s := g.openUntilEnd(b, nic.Options{})
	batch := streamtest.Strided(g.device(b, 8), g.pinned(b, 8), 1, 8)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		t, err := s.Submit(ctx, batch)
		if err != nil {
			b.Fatal(err)
		}
		if err := t.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
