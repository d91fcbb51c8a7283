package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// kernelBench is memory that kernels copy between, and descriptors.
type kernelBench struct {
	*fixture
	dev, host, descs, sums *mem.Region
}

const (
	benchDevice = 2 << 30
	benchHost   = 512 << 20
	benchPieces = 1 << 20
)

func newKernelBench(tb testing.TB) *kernelBench {
	tb.Helper()
	f := newFixture(tb)
	return &kernelBench{
		fixture: f, dev: f.device(benchDevice), host: f.pinned(benchHost),
		descs: f.pinned(benchPieces * device.CopyDescBytes), sums: f.pinned(benchPieces * 8),
	}
}

// describe writes descriptors of blocks scattered over device memory and, if scattered, over host memory, and returns their
// number and bytes.
func (k *kernelBench) describe(block int64, toHost, scattered bool, most int64) (pieces, bytes int64) {
	rng := rand.New(rand.NewPCG(3, 4))
	blocks := min(most/block, benchPieces*min(device.PieceBytes, block)/block, benchHost/block)
	devs := rng.Perm(int(benchDevice / block))
	hosts := rng.Perm(int(benchHost / block))
	for i := range blocks {
		at := i
		if scattered {
			at = int64(hosts[i])
		}
		d, h := uint64(k.dev.Dev())+uint64(int64(devs[i])*block), uint64(k.host.Dev())+uint64(at*block)
		for off := int64(0); off < block; off += device.PieceBytes {
			dst, src := d, h
			if toHost {
				dst, src = h, d
			}
			descriptor(k.descs, uint64(pieces), dst+uint64(off), src+uint64(off), uint64(min(device.PieceBytes, block-off)))
			pieces++
		}
	}
	return pieces, blocks * block
}

var ways = []struct {
	name   string
	toHost bool
}{{"h2d", false}, {"d2h", true}}

// BenchmarkGPUKernels reports the rate of the list kernels over thread blocks, block sizes and directions, scattered on both
// sides, with the host side contiguous too, and C, the rate of one large copy.
func BenchmarkGPUKernels(b *testing.B) {
	k := newKernelBench(b)
	l, ok := k.q.(device.KernelLister)
	if !ok {
		b.Fatal("the queue runs no kernels")
	}
	for _, way := range ways {
		b.Run("C/"+way.name, func(b *testing.B) {
			dst, src := mem.Extent{Region: k.dev, Len: benchHost}, mem.Extent{Region: k.host, Len: benchHost}
			if way.toHost {
				dst, src = src, dst
			}
			b.SetBytes(benchHost)
			for b.Loop() {
				k.must(k.q.Copy(dst, src))
				k.sync()
			}
		})
	}
	for _, kernel := range []struct {
		name string
		args int
		ctas []int
	}{
		{device.KernelCopyList, 2, []int{1, 2, 4, 8, 16, 32}},
		{device.KernelCopyListSum, 3, []int{4, 8, 16, 32}},
	} {
		if !l.HasKernel(kernel.name) {
			b.Logf("%s: this device does not have it", kernel.name)
			continue
		}
		for _, block := range []int64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20} {
			if kernel.args == 3 && block != device.LeafBytes {
				continue
			}
			for _, way := range ways {
				for _, side := range []string{"scattered", "contiguous"} {
					pieces, bytes := k.describe(block, way.toHost, side == "scattered", 128<<20)
					for _, ctas := range kernel.ctas {
						b.Run(fmt.Sprintf("%s/%s/%s/%d/%d", kernel.name, way.name, side, block, ctas), func(b *testing.B) {
							b.SetBytes(bytes)
							for b.Loop() {
								launch := device.Kernel{Name: kernel.name, CTAs: ctas, NArgs: kernel.args}
								launch.Args = [device.MaxKernelArgs]uint64{uint64(k.descs.Dev()), uint64(pieces), uint64(k.sums.Dev())}
								k.must(l.Launch(&launch))
								k.sync()
							}
						})
					}
				}
			}
		}
	}
}

// entries are resident entries by which so many workers share the pieces described. ok is false if they do not hold them.
func (k *kernelBench) entries(form string, workers int, pieces int64) (all []device.ResidentWords, ok bool) {
	for w := range int64(workers) {
		from := w * pieces / int64(workers)
		n := (w+1)*pieces/int64(workers) - from
		e := device.ResidentWords{1: device.ResidentList, 2: uint64(k.descs.Dev()) + uint64(from*device.CopyDescBytes), 3: uint64(n)}
		if form == "inline" {
			if n > device.ResidentInline {
				return nil, false
			}
			e = device.ResidentWords{1: device.ResidentCopy, device.ResidentPieces: uint64(n)}
			for i := range 3 * int(n) {
				e[device.ResidentPiece(i/3)+i%3] = hostmem.LoadUint64(k.descs.Bytes()[8*(3*int(from)+i):])
			}
		}
		all = append(all, e)
	}
	return all, true
}

// BenchmarkGPUResident reports what a batch takes from writing its entries until they are seen to be done, by a CPU that
// spins: the median and the 99th percentile.
func BenchmarkGPUResident(b *testing.B) {
	k := newKernelBench(b)
	l, ok := k.q.(device.KernelLister)
	if !ok || !l.HasKernel(device.KernelResident) {
		b.Fatal("the queue has no resident kernel")
	}
	const most, depth = 8, 64
	control := k.pinned(most * device.ResidentControlBytes)
	rings := k.pinned(most * depth * device.ResidentEntryBytes)
	word := func(w, off int) []byte { return control.Bytes()[w*device.ResidentControlBytes+off:] }
	generation := uint64(0)
	for _, workers := range []int{1, 2, 4, 8} {
		var next [most]uint64
		for w := range workers {
			next[w] = 1
			hostmem.StoreUint64(word(w, device.ResidentNext), 1)
			hostmem.StoreUint64(word(w, device.ResidentDone), 0)
			hostmem.StoreUint64(word(w, device.ResidentRing), uint64(rings.Dev())+uint64(w*depth*device.ResidentEntryBytes))
			hostmem.StoreUint64(word(w, device.ResidentDepth), depth)
		}
		clear(rings.Bytes())
		generation++
		put := func(w int, e *device.ResidentWords) {
			e[0] = next[w]
			at := rings.Bytes()[(w*depth+int(next[w]%depth))*device.ResidentEntryBytes:]
			hostmem.StoreUint64(at[device.ResidentLast:], e.Put(at))
			next[w]++
		}
		wait := func(w int) {
			for n := 0; hostmem.LoadUint64(word(w, device.ResidentDone)) != next[w]-1; n++ {
				if n > 1<<30 {
					b.Fatalf("worker %d is stuck at entry %d of %d", w, hostmem.LoadUint64(word(w, device.ResidentDone)), next[w]-1)
				}
			}
		}
		launch := device.Kernel{Name: device.KernelResident, CTAs: workers, NArgs: 5}
		launch.Args = [device.MaxKernelArgs]uint64{uint64(control.Dev()), device.ResidentControlBytes, generation, uint64(5 * time.Second), uint64(2 * time.Minute), 2}
		k.must(l.Launch(&launch))
		for _, way := range ways {
			for _, n := range []int64{1, 4, 16, 64, 256, 4096} {
				pieces, _ := k.describe(4096, way.toHost, true, n*4096)
				used := min(workers, int(pieces))
				for _, form := range []string{"inline", "list"} {
					entries, ok := k.entries(form, used, pieces)
					if !ok {
						continue
					}
					b.Run(fmt.Sprintf("workers=%d/%s/%dx4096/%s", workers, way.name, n, form), func(b *testing.B) {
						var took []time.Duration
						for b.Loop() {
							begin := time.Now()
							for w := range used {
								put(w, &entries[w])
							}
							for w := range used {
								wait(w)
							}
							took = append(took, time.Since(begin))
						}
						slices.Sort(took)
						b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
						b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
					})
				}
			}
		}
		for w := range workers {
			put(w, &device.ResidentWords{1: device.ResidentStop})
		}
		k.sync()
	}
}
