package store_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// slow is a stream whose batches complete one after another at the rate of a link. The delay uses
// no CPU time.
type slow struct {
	stream.Stream
	bytesPerNano float64
	landing      func(first, last bool) // called before each report of completed groups; may be nil

	mu     sync.Mutex
	free   time.Time
	before <-chan struct{} // closed when the previous batch has completed
}

func (s *slow) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged == nil {
		return s.Stream.Submit(ctx, b)
	}
	paged := *b.Paged
	paged.Completed = nil
	inner, err := s.Stream.Submit(ctx, &mem.Batch{Paged: &paged})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if now := time.Now(); s.free.Before(now) {
		s.free = now
	}
	var ends []time.Time
	for i := range paged.Groups {
		g := &paged.Groups[i]
		n := int64(0)
		for k := range g.Planes {
			n += g.Planes[k].Bytes * int64(len(g.Pairs))
		}
		s.free = s.free.Add(time.Duration(float64(n) / s.bytesPerNano))
		ends = append(ends, s.free)
	}
	before, completed := s.before, make(chan struct{})
	s.before = completed
	s.mu.Unlock()
	outer, report := stream.NewTicket(inner.ID(), inner.Cancel), b.Paged.Completed
	go func() {
		defer close(completed)
		<-inner.Done()
		if before != nil {
			<-before
		}
		delay := time.Duration(0)
		for i, end := range ends {
			time.Sleep(time.Until(end.Add(delay)))
			if s.landing != nil {
				start := time.Now()
				s.landing(before == nil && i == 0, i == len(ends)-1)
				delay += time.Since(start)
			}
			if report != nil && inner.Err() == nil {
				report(i+1, inner.Completion().Summed)
			}
		}
		outer.Resolve(inner.Completion(), inner.Err())
	}()
	return outer, nil
}

// BenchmarkDumpOverLink measures a dump of many blocks, whole and layerwise, until its source is
// free. It reports the rate as a share of the link's rate. The cache has slots for twice as many
// blocks.
func BenchmarkDumpOverLink(b *testing.B) {
	for _, blocks := range []int{256, 1024} {
		for _, layerwise := range []bool{false, true} {
			b.Run(fmt.Sprint(blocks)+map[bool]string{false: "/whole", true: "/layerwise"}[layerwise], func(b *testing.B) {
				benchDump(b, blocks, layerwise)
			})
		}
	}
}

func benchDump(b *testing.B, blocks int, layerwise bool) {
	b.Helper()
	const rate = 25 // GB/s
	r := newRig(b, rigOptions{
		slots: 2 * blocks, pages: blocks, shards: 32, planes: 2, planeBytes: 4096, path: stream.PathKernel, still: true,
		descriptors: streamcopy.DefaultDescriptors,
		wrapDump:    func(st stream.Stream) stream.Stream { return &slow{Stream: st, bytesPerNano: rate} },
		tune:        func(c *store.Config) { c.PartBytes = store.DefaultPartBytes },
	})
	ctx := r.ctx()
	ns := make([]int, blocks)
	for i := range ns {
		ns[i] = i
	}
	refs := r.refs(0, ns...)
	alone := float64(r.blockBytes()*int64(blocks)) / rate
	var free, durable []float64
	for round := uint64(0); b.Loop(); round++ {
		for i := range refs { // use new keys, so that no block is skipped
			binary.LittleEndian.PutUint64(refs[i].Key[:], round*uint64(blocks)+uint64(i)+1)
		}
		start := time.Now()
		t, err := r.st.Dump(ctx, r.pages, refs, store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		for k := 0; layerwise && k < r.o.shards; k++ {
			r.must(t.SubmitShard(ctx, k))
		}
		r.must(t.SourceFree(ctx))
		free = append(free, float64(time.Since(start).Nanoseconds()))
		r.must(t.Durable(ctx))
		durable = append(durable, float64(time.Since(start).Nanoseconds()))
	}
	for what, all := range map[string][]float64{"free-%": free, "durable-%": durable} {
		slices.Sort(all)
		b.ReportMetric(100*alone/all[len(all)/2], what)
	}
}
