package copy

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// kernel is the path on which kernels copy over the bus themselves, from descriptors in the ring.
type kernel struct {
	s        *Stream
	launcher device.Launcher
	summing  bool // the device has the kernel that sums pages
	launch   device.Kernel
}

// A kernel that copies between GPUs keeps as many bytes in flight as its multiprocessors can: over 18 NVLinks, of 387
// GB/s, 32 thread blocks push 348 in scattered 4 KiB pages and 354 in larger ones, 132 push 362 and 369 (H200). More
// multiprocessors than that have not been measured.
const (
	minPeerCTAs = 32
	maxPeerCTAs = 132
)

// ctas is how many thread blocks a kernel for o may have where neither the options nor the planner say.
func (k *kernel) ctas(o *op) int {
	if o.stats.ways&wayPeer == 0 {
		return DefaultCTAs
	}
	return min(max(k.s.dev.Info().Multiprocs, minPeerCTAs), maxPeerCTAs)
}

func (k *kernel) available() error {
	k.launcher, _ = k.s.queue.(device.Launcher)
	if k.launcher == nil {
		return fmt.Errorf("it runs no kernels: %w", errdefs.ErrNotSupported)
	}
	k.summing = hasKernel(k.launcher, device.KernelCopyPagedSum)
	return nil
}

// hasKernel reports whether l has a kernel: the plain ones every Launcher has.
func hasKernel(l device.Launcher, name string) bool {
	if name == device.KernelCopyList || name == device.KernelCopyPaged {
		return true
	}
	lister, ok := l.(device.KernelLister)
	return ok && lister.HasKernel(name)
}

func (k *kernel) takes(*survey) bool { return true }
func (k *kernel) calls() int         { return kernelStep + 1 }
func (k *kernel) prepare() error     { return k.s.makeRing() }

// summedStep is how much of the ring a step may take that leaves sums there: what the host has to do with them when the step is
// done, it does while the next one copies.
const summedStep = 256 << 10

func (k *kernel) room(o *op) (span, bool) {
	want := o.at.descriptorBytes(o.stats.descs, o.summed)
	if o.summed {
		want = min(want, summedStep)
	}
	return k.s.ring.reserve(want)
}

// sums reports whether the path fills the sums that a batch asks for. It looks at no ring, as the stream may be closed.
func (k *kernel) sums(o *op) bool {
	p := o.at.batch.Paged
	return k.summing && p != nil && len(p.Sums) > 0 && sumsFit(p, min(newPositions(k.s.ringBytes()).maxChunk, summedStep))
}

// step writes descriptors into sp and launches kernels on them until the batch is through, sp is full, or kernelStep
// launches are made. The device reads the descriptors when a kernel runs, so they stay until the step's event.
func (k *kernel) step(o *op, sp span, it *item) (done bool, err error) {
	it.ringEnd = sp.end - uint64(len(sp.buf))
	for it.calls < kernelStep && it.bytes < o.chunk() {
		t := table{
			summed: o.summed, dev: sp.dev, buf: sp.buf,
			limit: o.chunk() - it.bytes, aim: o.launchBytes(o.stats.bytes - o.sent - it.bytes),
			pairs: o.launchPairs(),
		}
		used := o.at.describe(&t, &k.launch)
		if used == 0 {
			break
		}
		if t.rows.words > 0 {
			t.rows.at += it.ringEnd
			it.sums = append(it.sums, t.rows)
		}
		used = min(align(used, tableAlign), uint64(len(sp.buf)))
		sp.buf, sp.dev = sp.buf[used:], sp.dev+mem.DevAddr(used)
		it.ringEnd += used
		it.calls++
		it.bytes += t.bytes
		o.launches++
		k.launch.CTAs = min(k.s.ctas(o, k.ctas(o)), k.launch.CTAs)
		if err := k.launcher.Launch(&k.launch); err != nil {
			return false, err
		}
	}
	return o.at.described(), nil
}

// ctas returns how many thread blocks a kernel for o may have.
func (s *Stream) ctas(o *op, otherwise int) int {
	switch {
	case o.choice.CTAs > 0:
		return o.choice.CTAs
	case s.opts.CTAs > 0:
		return s.opts.CTAs
	}
	return otherwise
}
