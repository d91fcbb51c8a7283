package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// fastTier keeps the headers of blocks in memory and reads nothing else, so that a benchmark
// measures the store alone. Each read takes wait.
type fastTier struct {
	*file.Tier
	headers map[block.Key][]byte
	wait    time.Duration
}

func (f *fastTier) Retain(_ context.Context, keys []block.Key) (int, error) { return len(keys), nil }

func (f *fastTier) Release([]block.Key) {}

func (f *fastTier) Read(_ context.Context, key block.Key, dst mem.Extent) error {
	if f.wait > 0 {
		time.Sleep(f.wait)
	}
	copy(dst.Bytes(), f.headers[key])
	return nil
}

// keep reads the headers of the given blocks from the file tier into memory.
func (f *fastTier) keep(r *rig, ns []int) {
	slot := mem.All(r.host).Sub(0, r.format.Layout.ImageBytes())
	for _, n := range ns {
		r.must(r.file.Read(r.ctx(), r.key(n), slot))
		f.headers[r.key(n)] = append([]byte(nil), slot.Bytes()[:r.format.Layout.HeaderBytes()]...)
	}
}

// BenchmarkLoadFromBelow loads blocks through a window from files in the page cache, with and
// without a lease. It also loads them from a tier that answers at once, and from one with the delay
// of a disk.
func BenchmarkLoadFromBelow(b *testing.B) {
	const blocks, files = 2048, -1
	for _, bb := range []struct {
		name    string
		wait    time.Duration
		shards  int // number of shards, 8 KiB each
		readers int
		leased  bool
	}{
		{name: "8KiB/files", wait: files, shards: 1},
		{name: "8KiB/files/leased", wait: files, shards: 1, leased: true},
		{name: "64KiB/files", wait: files, shards: 8},
		{name: "64KiB/files/leased", wait: files, shards: 8, leased: true},
		{name: "64KiB/no time", shards: 8},
		{name: "64KiB/100us/8 readers", wait: 100 * time.Microsecond, shards: 8, readers: 8},
		{name: "64KiB/100us", wait: 100 * time.Microsecond, shards: 8},
	} {
		wait := bb.wait
		b.Run(bb.name, func(b *testing.B) {
			fast := &fastTier{headers: make(map[block.Key][]byte), wait: wait}
			r := newRig(b, rigOptions{
				slots: 1024, pages: blocks, shards: bb.shards, planes: 2, planeBytes: leafy, path: stream.PathKernel, still: true, memo: true, sumEvery: 1,
				window: true, dirs: []string{b.TempDir()}, wrapFile: func(t tier.Tier) tier.Tier {
					f, ok := t.(*file.Tier)
					if fast.Tier = f; !ok || wait < 0 {
						return t
					}
					return fast
				},
				tune: func(c *store.Config) { c.Readers = bb.readers },
			})
			ns := make([]int, blocks)
			for i := range ns {
				ns[i] = i
			}
			refs, ctx := r.refs(0, ns...), r.ctx()
			d, err := r.st.Dump(ctx, r.pages, refs, store.DumpOptions{})
			r.must(err)
			r.must(d.Durable(ctx))
			fast.keep(r, ns)
			bench(b, r, func() error {
				var lease *store.Lease
				if bb.leased {
					var err error
					if lease, err = r.st.LeasePrefix(ctx, r.keys(ns...), 0); err != nil {
						return err
					}
					defer lease.Release()
				}
				t, err := r.st.Load(ctx, lease, r.pages, refs, store.LoadOptions{})
				if err != nil {
					return err
				}
				return t.Wait(ctx)
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
			if st := r.st.Stats(); st.Retries > 0 || st.VerifiedByCPU > 0 {
				b.Errorf("%d retries, %d blocks verified by the CPU", st.Retries, st.VerifiedByCPU)
			}
		})
	}
}
