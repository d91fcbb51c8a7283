package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// BenchmarkLoadTail measures two times over a link: from the completion of the last part of a load
// to the end of the load, and from the completion of layer 0 to the return of WaitShard. During the
// copies the benchmark overwrites the CPU's caches. CPU time includes the simulated device.
func BenchmarkLoadTail(b *testing.B) {
	for _, blocks := range []int{8, 128, 1024} {
		for _, layerwise := range []bool{false, true} {
			b.Run(fmt.Sprint(blocks)+map[bool]string{false: "/whole", true: "/layerwise"}[layerwise], func(b *testing.B) {
				benchTail(b, blocks, store.LoadOptions{Layerwise: layerwise})
			})
		}
	}
}

func benchTail(b *testing.B, blocks int, o store.LoadOptions) {
	b.Helper()
	other := make([]byte, 48<<20)
	var first, last time.Time
	var flushing int64
	usage := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	flush := func() {
		before := usage()
		for i := 0; i < len(other); i += 64 {
			other[i]++
		}
		flushing += usage() - before
	}
	link := &slow{bytesPerNano: 50, landing: func(isFirst, isLast bool) {
		if isFirst || isLast {
			flush()
		}
		now := time.Now()
		if isFirst {
			first = now
		}
		if isLast {
			last = now
		}
	}}
	r := newRig(b, rigOptions{
		slots: 2 * blocks, pages: blocks, shards: 32, planes: 2, planeBytes: 4096, path: stream.PathKernel, still: true,
		descriptors: streamcopy.DefaultDescriptors,
		wrapLoad: func(st stream.Stream) stream.Stream {
			link.Stream = st
			return link
		},
		tune: func(c *store.Config) { c.PartBytes = store.DefaultPartBytes },
	})
	ctx, ns := r.ctx(), rand.New(rand.NewPCG(1, 2)).Perm(blocks)
	refs, keys := r.refs(0, ns...), r.keys(ns...)
	t, err := r.st.Dump(ctx, r.pages, refs, store.DumpOptions{})
	r.must(err)
	r.must(t.Durable(ctx))
	r.must(r.st.OpenStreams(ctx))
	var firstLayers, tails []time.Duration
	cpu := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		link.before = nil
		flush()
		flushing, cpu = 0, cpu-usage()
		lease, err := r.st.LeasePrefix(ctx, keys, 0)
		r.must(err)
		t, err := r.st.Load(ctx, lease, r.pages, refs, o)
		r.must(err)
		if o.Layerwise {
			r.must(t.WaitShard(ctx, 0))
			firstLayers = append(firstLayers, time.Since(first))
		}
		r.must(t.Wait(ctx))
		tails = append(tails, time.Since(last))
		lease.Release()
		cpu += usage() - flushing
	}
	b.ReportMetric(float64(cpu)/1e3/float64(b.N)/float64(blocks), "cpu-us/block")
	for what, all := range map[string][]time.Duration{"layer0-us": firstLayers, "tail-us": tails} {
		if slices.Sort(all); len(all) > 0 {
			b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, what)
			b.ReportMetric(float64(all[len(all)/10].Nanoseconds())/1e3, what+"-p10")
		}
	}
}
