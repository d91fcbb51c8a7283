package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// descriptor writes descriptor i of KernelCopyList.
func descriptor(r *mem.Region, i, dst, src, n uint64) {
	b := r.Bytes()[i*device.CopyDescBytes:]
	hostmem.StoreUint64(b, dst)
	hostmem.StoreUint64(b[8:], src)
	hostmem.StoreUint64(b[16:], n)
}

// blocks returns a benchmark's work: count blocks scattered over device memory, contiguous in host
// memory.
func blocks(f *fixture, bytes, count int64) (dev, host []mem.Extent) {
	const span = 2 << 30
	d, h := f.device(span), f.pinned(bytes*count)
	perm := rand.New(rand.NewPCG(1, 2)).Perm(int(span / bytes))
	for i := range count {
		dev = append(dev, mem.Extent{Region: d, Off: int64(perm[i]) * bytes, Len: bytes})
		host = append(host, mem.Extent{Region: h, Off: i * bytes, Len: bytes})
	}
	return dev, host
}

// BenchmarkGPU reports the rate of each path for scattered blocks, and of one large copy.
func BenchmarkGPU(b *testing.B) {
	f := newFixture(b)
	for _, size := range []int64{4 << 10, 64 << 10, 1 << 20} {
		dev, host := blocks(f, size, min(256<<20/size, 32768))
		total := size * int64(len(dev))
		pieces := (size + device.PieceBytes - 1) / device.PieceBytes
		descs := f.pinned(device.CopyDescBytes * pieces * int64(len(dev)))
		for _, dir := range []string{"h2d", "d2h"} {
			dst, src := dev, host
			if dir == "d2h" {
				dst, src = host, dev
			}
			measure := func(name string, work func()) {
				b.Run(fmt.Sprintf("%s/%s/%d", name, dir, size), func(b *testing.B) {
					b.SetBytes(total)
					b.ReportAllocs()
					for b.Loop() {
						work()
						f.sync()
					}
				})
			}
			all := mem.Extent{Region: host[0].Region, Len: total}
			there := mem.Extent{Region: dev[0].Region, Len: total}
			if dir == "d2h" {
				measure("one", func() { f.must(f.q.Copy(all, there)) })
			} else {
				measure("one", func() { f.must(f.q.Copy(there, all)) })
			}
			measure("copies", func() {
				for i := range dst {
					f.must(f.q.Copy(dst[i], src[i]))
				}
			})
			if bc, ok := f.q.(device.BatchCopier); ok {
				measure("batch", func() { f.must(bc.CopyBatch(dst, src)) })
			}
			n := uint64(0)
			for i := range dst {
				for off := int64(0); off < size; off += device.PieceBytes {
					l := min(size-off, device.PieceBytes)
					descriptor(descs, n, uint64(dst[i].Dev())+uint64(off), uint64(src[i].Dev())+uint64(off), uint64(l))
					n++
				}
			}
			measure("kernel", func() { f.launch(device.KernelCopyList, uint64(descs.Dev()), n) })
		}
	}
}

// BenchmarkGPULatency reports the cost of single calls, and of a small copy with its wait.
func BenchmarkGPULatency(b *testing.B) {
	f := newFixture(b)
	d, h := f.device(1<<20), f.pinned(1<<20)
	small := func(r *mem.Region) mem.Extent { return mem.Extent{Region: r, Len: 4096} }
	b.Run("copy-and-wait", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.must(f.q.Copy(small(d), small(h)))
			f.sync()
		}
	})
	b.Run("launch-and-wait", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.launch(device.KernelCopyList, uint64(h.Dev()), 0)
			f.sync()
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			f.must(f.q.Copy(small(d), small(h)))
			if i%256 == 255 {
				b.StopTimer()
				f.sync()
				b.StartTimer()
			}
		}
		f.sync()
	})
	b.Run("query", func(b *testing.B) {
		e, err := f.q.Record()
		f.must(err)
		defer e.Close()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := e.Done(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGPUAllocHost(b *testing.B) {
	f := newFixture(b)
	const size = 4 << 30
	b.SetBytes(size)
	for b.Loop() {
		r, err := f.dev.AllocHost(size)
		f.must(err)
		f.must(f.dev.Free(r))
	}
}
