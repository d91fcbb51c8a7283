package log_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// BenchmarkPutOnSlowDisk measures writers that put 64 blocks of 256 KiB at a time. The simulated
// disk accepts 500 MB/s for each file, one write at a time, like the page cache of a file system,
// and discards the data.
func BenchmarkPutOnSlowDisk(b *testing.B) {
	const bytes, many, rate = 256 << 10, 64, 500e6
	l, err := block.NewLayout([]int64{bytes})
	if err != nil {
		b.Fatal(err)
	}
	f := block.Format{Layout: l, Identity: block.Digest{1}}
	for _, writers := range []int{1, 4} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			tr, err := log.Open(b.Context(), log.Config{
				Dir: b.TempDir(), Formats: block.Formats{f}, Fsync: log.FsyncNever, FS: slowFS{dirfs.OS(), rate},
			})
			if err != nil {
				b.Fatal(err)
			}
			src := tiertest.Buffer(b, l.ImageBytes()*int64(writers)*many)
			var images []mem.Extent
			for i := range int64(writers * many) {
				images = append(images, src.Sub(i*l.ImageBytes(), l.ImageBytes()))
				tiertest.Seal(b, f, images[i].Bytes(), tiertest.Key(0), 0)
			}
			sums := f.ShardSums(nil, images[0].Bytes(), tiertest.Key(0))
			b.SetBytes(bytes * many)
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					keys, errs := make([]block.Key, many), make([]error, many)
					srcs := images[w*many:][:many]
					for n := w; n < b.N; n += writers {
						for i := range keys {
							keys[i] = tiertest.Key(n*many + i)
							_ = f.SealWith(srcs[i].Bytes(), keys[i], sums)
						}
						tr.PutMany(b.Context(), keys, srcs, errs)
						for _, err := range errs {
							if err != nil {
								b.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			if err := tr.Close(context.WithoutCancel(b.Context())); err != nil {
				b.Error(err)
			}
		})
	}
}

// slowFS is a file system whose files accept rate bytes a second each.
type slowFS struct {
	dirfs.FS
	rate float64
}

func (s slowFS) OpenDir(path string) (dirfs.Dir, error) {
	d, err := s.FS.OpenDir(path)
	return slowDir{d, s.rate}, err
}

type slowDir struct {
	dirfs.Dir
	rate float64
}

func (d slowDir) Open(name string, flag int) (dirfs.File, error) {
	f, err := d.Dir.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &slowFile{File: f, rate: d.rate}, nil
}

type slowFile struct {
	dirfs.File
	rate float64
	mu   sync.Mutex
}

func (f *slowFile) WriteAllAt(parts [][]byte, off int64) (n int, err error) {
	for _, p := range parts {
		n += len(p)
	}
	if n <= 1<<20 {
		return f.File.(dirfs.Gatherer).WriteAllAt(parts, off) //nolint:forcetypeassert,errcheck // files of the operating system implement it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	time.Sleep(time.Duration(float64(n) / f.rate * float64(time.Second)))
	return n, nil
}
