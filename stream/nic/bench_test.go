package nic_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// BenchmarkRequest is what a work request costs on a NIC that moves nothing, that NIC's own work included: loads of
// scattered pages in batches of so many, up to 16 batches under way. With sges=1 a request has one block, and ns/block is what
// it costs; by default one queue pair's requests have several blocks.
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

// blocks pairs every block of pages, in random order, with one of slots.
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

// batches cuts b into batches of that many bytes; lists have the blocks of the slots shuffled as well.
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

// benchmarkBatches keeps some of the batches under way, which are of one length.
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
	b.ResetTimer() // and not b.Loop: what is in flight at the end belongs to the time
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

// cpuTime is what the process has used of all processors, which other processes change less than the time that passes.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRoundTrip is how long one small batch takes from Submit to the end of Wait.
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

// pacedStream stands in for the copy stream of a GPU: batches take as long as their bytes at rate, and overhead each. It
// moves nothing.
type pacedStream struct {
	overhead time.Duration
	rate     float64 // bytes a nanosecond
	work     chan paced
	ended    chan struct{}
	mu       sync.Mutex
	id       uint64
	free     time.Time // when what was submitted is done
}

type paced struct {
	ticket *stream.Ticket
	bytes  int64
	due    time.Time
}

func newPacedStream(overhead time.Duration, gbps float64) *pacedStream {
	s := &pacedStream{overhead: overhead, rate: gbps, work: make(chan paced, 1024), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for p := range s.work {
			if d := time.Until(p.due); d > 0 { // the runtime's timers are coarser than a batch is long
				ts := unix.NsecToTimespec(d.Nanoseconds())
				_ = unix.Nanosleep(&ts, nil) // woken early, it is a little faster
			}
			p.ticket.Resolve(stream.Completion{Path: stream.PathKernel, Bytes: p.bytes}, nil)
		}
	}()
	return s
}

func (s *pacedStream) Submit(_ context.Context, b *mem.Batch) (*stream.Ticket, error) {
	n := b.Bytes()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(s.overhead + time.Duration(float64(n)/s.rate))
	s.id++
	p := paced{ticket: stream.NewTicket(s.id, func() {}), bytes: n, due: s.free}
	s.work <- p
	return p.ticket, nil
}

func (s *pacedStream) Err() error { return nil }

func (s *pacedStream) Close(context.Context) error {
	close(s.work)
	<-s.ended
	return nil
}

// BenchmarkPaced is the rate at which blocks pass through the stream and NICs in software to copy streams that together take
// 55 GB/s and need 4 us a batch: what is less is what the CPUs of this machine are too slow for.
func BenchmarkPaced(b *testing.B) {
	const size, n = 4096, 4096
	for _, c := range []struct{ nics, sges int }{{1, 1}, {1, nic.DefaultMaxSGE}, {2, nic.DefaultMaxSGE}, {4, nic.DefaultMaxSGE}} {
		b.Run(fmt.Sprintf("nics=%d/sges=%d/cpus=%d", c.nics, c.sges, runtime.GOMAXPROCS(0)), func(b *testing.B) {
			var streams []stream.Stream
			for range c.nics {
				streams = append(streams, newPacedStream(4*time.Microsecond, 55/float64(c.nics)))
			}
			g := newRig(b, rigOptions{nics: c.nics, soft: soft.Options{Mover: moverOn(b, streams)}})
			s := g.openUntilEnd(b, nic.Options{MaxSGE: c.sges, SendDepth: 8192, StripeBytes: 16 << 10})
			b.SetBytes(size * n)
			benchmarkBatches(b, s, []*mem.Batch{blocks(g.pinned(b, size*n), g.device(b, size*n), mem.ToPages, size)}, 8)
		})
	}
}
