package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
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

// describe writes descriptors of blocks scattered over device memory and, if scattered, over host
// memory, and returns their number and bytes.
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

// BenchmarkGPUKernels reports the rate of the list kernels over thread blocks, block sizes and
// directions, scattered on both sides, with the host side contiguous too, and C, the rate of one
// large copy.
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
