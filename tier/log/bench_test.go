package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// roundBytes is the number of bytes in each of the alternating rounds of the log and the plain
// disk. Many rounds are needed, because the cache of a disk distorts single rates.
const roundBytes = 256 << 20

// BenchmarkLog puts blocks of one shard, 32 at a time, and reads them one by one in random order.
// "disk" measures the time from the first Put until all blocks are durable. Its rounds alternate
// with sequential O_DIRECT writes of 8 MiB to a preallocated file.
func BenchmarkLog(b *testing.B) {
	for _, bytes := range []int64{4 << 10, 64 << 10, 2 << 20} {
		l, err := block.NewLayout([]int64{bytes})
		if err != nil {
			b.Fatal(err)
		}
		f := block.Format{Layout: l, Identity: block.Digest{1}}
		const many = 32
		open := func(b *testing.B, dir string) *log.Tier {
			b.Helper()
			tr, err := log.Open(b.Context(), log.Config{Dir: dir, Formats: block.Formats{f}, MaxBytes: 2 << 30})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := tr.Close(context.WithoutCancel(b.Context())); err != nil {
					b.Error(err)
				}
			})
			return tr
		}
		keys, srcs, errs := make([]block.Key, many), make([]mem.Extent, many), make([]error, many)
		for i := range srcs {
			srcs[i] = tiertest.Buffer(b, l.ImageBytes())
		}
		putSome := func(b *testing.B, tr *log.Tier, from int) {
			b.Helper()
			b.StopTimer()
			for i := range keys {
				keys[i] = tiertest.Key(from + i)
				if err := f.Seal(srcs[i].Bytes(), keys[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			tr.PutMany(b.Context(), keys, srcs, errs)
			for _, err := range errs {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(fmt.Sprintf("put/%dKiB", bytes>>10), func(b *testing.B) {
			tr := open(b, b.TempDir())
			b.SetBytes(bytes * many)
			for n := 0; b.Loop(); n++ {
				putSome(b, tr, n*many)
			}
		})
		for _, callers := range []int{1, 4} {
			b.Run(fmt.Sprintf("disk/%dKiB/%d", bytes>>10, callers), func(b *testing.B) { alternateWithDisk(b, open, f, callers, many) })
		}
		b.Run(fmt.Sprintf("get/%dKiB", bytes>>10), func(b *testing.B) {
			tr := open(b, b.TempDir())
			n := int(min(8192, 256<<20/bytes)) / many * many
			for from := 0; from < n; from += many {
				putSome(b, tr, from)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			b.SetBytes(bytes)
			for b.Loop() {
				if err := tr.Get(b.Context(), tiertest.Key(rng.IntN(n)), srcs[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func alternateWithDisk(b *testing.B, open func(*testing.B, string) *log.Tier, f block.Format, callers, many int) {
	b.Helper()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	srcs := make([]mem.Extent, callers*many)
	for i := range srcs {
		srcs[i] = tiertest.Buffer(b, f.Layout.ImageBytes())
		must(f.Seal(srcs[i].Bytes(), tiertest.Key(i)))
	}
	sums := f.ShardSums(nil, srcs[0].Bytes(), tiertest.Key(0))
	putAll := func(tr *log.Tier, caller int) error {
		keys, errs, srcs := make([]block.Key, many), make([]error, many), srcs[caller*many:][:many]
		for n := caller * many; int64(n)*f.Layout.DataBytes() < roundBytes; n += callers * many {
			for i := range srcs {
				keys[i] = tiertest.Key(n + i)
				if err := f.SealWith(srcs[i].Bytes(), keys[i], sums); err != nil {
					return err
				}
			}
			tr.PutMany(b.Context(), keys, srcs, errs)
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return nil
	}
	piece, err := hostmem.Alloc(8 << 20)
	must(err)
	defer func() { must(hostmem.Free(piece)) }()
	var ours, disk time.Duration
	b.SetBytes(roundBytes)
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		tr := open(b, dir)
		b.StartTimer()
		begun := time.Now()
		var g errgroup.Group
		for caller := range callers {
			g.Go(func() error { return putAll(tr, caller) })
		}
		must(g.Wait())
		must(log.Sync(tr))
		ours += time.Since(begun)
		b.StopTimer()
		must(tr.Close(b.Context()))
		must(os.RemoveAll(dir))
		raw, err := os.OpenFile(filepath.Join(b.TempDir(), "raw"), os.O_CREATE|os.O_WRONLY|unix.O_DIRECT, 0o600)
		must(err)
		must(unix.Fallocate(int(raw.Fd()), 0, 0, roundBytes))
		begun = time.Now()
		for off := int64(0); off < roundBytes; off += int64(len(piece)) {
			_, err := raw.WriteAt(piece, off)
			must(err)
		}
		must(raw.Sync())
		disk += time.Since(begun)
		must(errors.Join(raw.Close(), os.Remove(raw.Name())))
		b.StartTimer()
	}
	b.ReportMetric(roundBytes*float64(b.N)/1e6/disk.Seconds(), "MB/s-disk")
	b.ReportMetric(disk.Seconds()/ours.Seconds(), "of-disk")
}
