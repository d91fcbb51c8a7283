package sim_test

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
)

// BenchmarkPieces copies 32 MiB in pieces of one size, with each kind of call. Allocations are for
// 32 MiB.
func BenchmarkPieces(b *testing.B) {
	const total = 32 << 20
	for _, n := range []int64{256, 4096, 1 << 20} {
		d, err := sim.Open(sim.Options{})
		if err != nil {
			b.Fatal(err)
		}
		dq, _ := d.OpenQueue(device.QueueOptions{})
		q := asQueue(b, dq)
		r, _ := d.Alloc(total, device.AllocOptions{})
		p, _ := d.AllocHost(total)
		list, err := d.AllocHost(total / n * device.CopyDescBytes)
		if err != nil {
			b.Fatal(err)
		}
		var dst, src []mem.Extent
		for i := range total / n {
			j := i * 7919 % (total / n) // scattered
			dst, src = append(dst, ext(r, i*n, n)), append(src, ext(p, j*n, n))
			words(list, int(i)*device.CopyDescBytes, uint64(dst[i].Dev()), uint64(src[i].Dev()), uint64(n))
		}
		k := launch(device.KernelCopyList, uint64(list.Dev()), uint64(len(dst)))
		ways := []struct {
			name string
			do   func() error
		}{
			{"kernel", func() error { return q.Launch(k) }},
			{"batch", func() error { return q.CopyBatch(dst, src) }},
			{"copies", func() error {
				for i := range dst {
					if err := q.Copy(dst[i], src[i]); err != nil {
						return err
					}
				}
				return nil
			}},
		}
		for _, w := range ways {
			b.Run(fmt.Sprintf("%s/%d", w.name, n), func(b *testing.B) {
				b.SetBytes(total)
				b.ReportAllocs()
				for b.Loop() {
					if err := w.do(); err != nil {
						b.Fatal(err)
					}
					e, err := q.Record()
					if err != nil {
						b.Fatal(err)
					}
					if err := e.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
					e.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dst)), "ns/piece")
			})
		}
		if err := q.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		for _, reg := range []*mem.Region{r, p, list} {
			if err := d.Free(reg); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
