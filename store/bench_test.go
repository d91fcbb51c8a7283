package store_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// benchBlocks is the number of blocks of a task. Each block has 64 planes.
const benchBlocks = 64

// benchPolicy is a verify policy with a value of rigOptions.sumEvery. Checksums from the summer
// decorator cost no time, as on a GPU.
type benchPolicy struct {
	name   string
	policy store.VerifyPolicy
	sums   int
}

var benchPolicies = []benchPolicy{
	{"device", store.VerifyDevice, 1},
	{"device, CPU sums", store.VerifyDevice, noSums},
	{"always", store.VerifyAlways, noSums},
	{"fill", store.VerifyFill, noSums},
	{"device, simulated sums", store.VerifyDevice, 0}, // the stream sums by itself, without the allocations of a decorator
}

func benchRig(b *testing.B, p benchPolicy) (*rig, []int) {
	b.Helper()
	r := newRig(b, rigOptions{
		slots: 2 * benchBlocks, pages: benchBlocks, shards: 32, planes: 2, planeBytes: 4096, sumEvery: p.sums, memo: true,
		tune: func(c *store.Config) { c.Verify = p.policy },
	})
	ns := make([]int, benchBlocks)
	for i := range ns {
		ns[i] = i
		r.fill(uint32(i), i)
	}
	return r, ns
}

// perBlock reports allocations and allocated bytes of the timed loop, for each block and for each
// extent (a plane of a block).
func perBlock(b *testing.B, r *rig, before *runtime.MemStats) {
	b.Helper()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	blocks := float64(b.N * benchBlocks)
	allocs := float64(after.Mallocs - before.Mallocs)
	b.ReportMetric(allocs/blocks, "allocs/block")
	b.ReportMetric(allocs/blocks/float64(r.o.shards*r.o.planes), "allocs/extent")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/blocks, "heap-B/block")
}

func BenchmarkLoadFromCache(b *testing.B) {
	for _, p := range benchPolicies {
		for _, layerwise := range []bool{false, true} {
			b.Run(p.name+map[bool]string{false: "/whole", true: "/layerwise"}[layerwise], func(b *testing.B) {
				r, ns := benchRig(b, p)
				r.dump(ns...)
				refs := r.refs(0, ns...)
				ctx := r.ctx()
				bench(b, r, func() error {
					t, err := r.st.Load(ctx, nil, r.pages, refs, store.LoadOptions{Layerwise: layerwise})
					if err != nil {
						return err
					}
					return t.Wait(ctx)
				})
			})
		}
	}
}

func BenchmarkDumpToCache(b *testing.B) {
	for _, p := range slices.Concat(benchPolicies[:3], benchPolicies[4:]) {
		b.Run(p.name, func(b *testing.B) {
			r, ns := benchRig(b, p)
			refs := r.refs(0, ns...)
			ctx := r.ctx()
			n := 0
			bench(b, r, func() error {
				for i := range refs { // use new keys, so that no block is skipped
					n++
					binary.LittleEndian.PutUint64(refs[i].Key[:], uint64(n))
				}
				t, err := r.st.Dump(ctx, r.pages, refs, store.DumpOptions{})
				if err != nil {
					return err
				}
				return t.Durable(ctx)
			})
		})
	}
}

// bench times f, which copies benchBlocks blocks. It first runs f a few times to fill the pools.
func bench(b *testing.B, r *rig, f func() error) {
	b.Helper()
	for range 4 {
		r.must(f())
	}
	b.SetBytes(r.blockBytes() * benchBlocks)
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	perBlock(b, r, &before)
}

// BenchmarkOneBlockFromCache measures the host's time for a request of one block. The device copies
// nothing.
func BenchmarkOneBlockFromCache(b *testing.B) {
	r := newRig(b, rigOptions{slots: 8, pages: 8, shards: 32, planes: 2, planeBytes: 4096, path: stream.PathKernel, still: true})
	r.dump(1)
	refs, keys, ctx := r.refs(0, 1), r.keys(1), r.ctx()
	b.ReportAllocs()
	for b.Loop() {
		l, err := r.st.LeasePrefix(ctx, keys, 0)
		r.must(err)
		t, err := r.st.Load(ctx, l, r.pages, refs, store.LoadOptions{})
		r.must(err)
		r.must(t.Wait(ctx))
		l.Release()
	}
}

// link records the time at which the first page group of each batch would arrive over a link of 50
// GB/s with a latency of 10 us. The first group is the first layer of a load.
type link struct {
	stream.Stream
	first, busy time.Time
}

// launches is a device that records the time of the first kernel launch.
type launches struct {
	*sim.Device
	first *time.Time
}

func (d launches) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if sq, ok := q.(*sim.Queue); ok {
		return launchQueue{sq, d.first}, nil
	}
	return q, err
}

type launchQueue struct {
	*sim.Queue
	first *time.Time
}

func (q launchQueue) Launch(k *device.Kernel) error {
	if q.first.IsZero() {
		*q.first = time.Now()
	}
	return q.Queue.Launch(k)
}

func (l *link) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	now := time.Now()
	if l.first.IsZero() {
		l.first = now
	}
	if at := now.Add(10 * time.Microsecond); l.busy.Before(at) {
		l.busy = at
	}
	if b.Paged != nil && len(b.Paged.Groups) > 0 {
		g := &b.Paged.Groups[0]
		n := 0
		for k := range g.Planes {
			n += int(g.Planes[k].Bytes) * len(g.Pairs)
		}
		l.busy = l.busy.Add(time.Duration(n / 50))
	}
	return l.Stream.Submit(ctx, b)
}

// BenchmarkManyFromCache measures requests of many blocks. The device copies nothing. It reports
// the times from the start of the lease to the first submitted blocks, to the first kernel launch
// and to the end of the load. CPU time includes the simulated device. Between requests the
// benchmark overwrites the CPU's caches.
func BenchmarkManyFromCache(b *testing.B) {
	for _, blocks := range []int{8, 128, 1024, 4096} {
		for _, layerwise := range []bool{false, true} {
			b.Run(fmt.Sprint(blocks)+map[bool]string{false: "/whole", true: "/layerwise"}[layerwise], func(b *testing.B) {
				benchMany(b, blocks, store.LoadOptions{Layerwise: layerwise})
			})
		}
	}
}

func benchMany(b *testing.B, blocks int, o store.LoadOptions) {
	b.Helper()
	var l *link
	var launched time.Time // requests run one at a time
	r := newRig(b, rigOptions{
		slots: 4 * blocks, pages: blocks, shards: 32, planes: 2, planeBytes: 4096, path: stream.PathKernel, still: true,
		descriptors: streamcopy.DefaultDescriptors,
		wrapDevice:  func(d *sim.Device) device.Device { return launches{d, &launched} },
		wrapLoad: func(st stream.Stream) stream.Stream {
			l = &link{Stream: st}
			return l
		},
		tune: func(c *store.Config) { c.PartBytes = store.DefaultPartBytes },
	})
	ctx, ns := r.ctx(), rand.New(rand.NewPCG(1, 2)).Perm(2*blocks)
	var refs [2][]store.Ref
	var keys [2][]block.Key
	for i := range refs {
		refs[i], keys[i] = r.refs(0, ns[i*blocks:][:blocks]...), r.keys(ns[i*blocks:][:blocks]...)
		t, err := r.st.Dump(ctx, r.pages, refs[i], store.DumpOptions{})
		r.must(err)
		r.must(t.Durable(ctx))
	}
	r.must(r.st.OpenStreams(ctx))
	durations, cpu := make(map[string][]time.Duration), int64(0)
	other := make([]byte, 32<<20) // written between requests to overwrite the CPU's caches
	b.ReportAllocs()
	for round := 0; b.Loop(); round++ {
		l.first, l.busy, launched = time.Time{}, time.Time{}, time.Time{}
		for i := 0; i < len(other); i += 64 {
			other[i]++
		}
		var before, after unix.Rusage
		r.must(unix.Getrusage(unix.RUSAGE_SELF, &before))
		start := time.Now()
		lease, err := r.st.LeasePrefix(ctx, keys[round%2], 0)
		r.must(err)
		leased := time.Now()
		t, err := r.st.Load(ctx, lease, r.pages, refs[round%2], o)
		r.must(err)
		called := time.Now()
		r.must(t.Wait(ctx))
		durations["all-us"] = append(durations["all-us"], time.Since(start))
		lease.Release()
		r.must(unix.Getrusage(unix.RUSAGE_SELF, &after))
		cpu += after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		durations["lease-us"] = append(durations["lease-us"], leased.Sub(start))
		durations["call-us"] = append(durations["call-us"], called.Sub(leased))
		durations["first-us"] = append(durations["first-us"], l.first.Sub(start))
		durations["launched-us"] = append(durations["launched-us"], launched.Sub(start))
		durations["layer0-us"] = append(durations["layer0-us"], l.busy.Sub(start))
	}
	b.ReportMetric(float64(cpu)/1e3/float64(b.N)/float64(blocks), "cpu-us/block")
	for what, all := range durations {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, what)
	}
}

// BenchmarkLeasePrefix leases and releases a prefix of 1,000 cached blocks.
func BenchmarkLeasePrefix(b *testing.B) {
	const blocks = 1000
	r := newRig(b, rigOptions{slots: 2 * blocks, pages: blocks, shards: 1, planes: 1, planeBytes: 64})
	ns := make([]int, blocks)
	for i := range ns {
		ns[i] = i
	}
	r.dump(ns...)
	keys, ctx := r.keys(ns...), r.ctx()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	best := time.Hour // time of the fastest round, which other processes disturbed least
	for b.Loop() {
		start := time.Now()
		l, err := r.st.LeasePrefix(ctx, keys, 0)
		if err != nil || l.Len() != blocks {
			b.Fatal(err)
		}
		l.Release()
		best = min(best, time.Since(start))
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(best.Nanoseconds())/blocks, "best-ns/block")
	n := float64(b.N) * blocks
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/block")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/block")
}
