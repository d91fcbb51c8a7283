package move

import (
	"context"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// DefaultCTAs is the default number of thread blocks of a kernel that copies over the bus.
const DefaultCTAs = 16

// minPeerCTAs and maxPeerCTAs bound the thread blocks of a kernel that copies between GPUs. It uses
// one per multiprocessor, to keep as many bytes in flight as possible. Over 18 NVLinks (387 GB/s),
// 32 thread blocks write 348 GB/s in scattered 4 KiB pages and 354 in larger ones; 132 write 362
// and 369 (H200). Devices with more multiprocessors were not measured.
const (
	minPeerCTAs = 32
	maxPeerCTAs = 132
)

// summedStep bounds the part of the ring that a step with sums uses. The host copies the sums of a
// completed step while the next step runs.
const summedStep = 256 << 10

// Kernel is the path on which kernels copy over the bus, with descriptors in the ring.
type Kernel struct {
	env       *Env
	launcher  device.Launcher
	summing   bool // the device has the kernel that sums pages
	canReport bool // the device has the kernels that report completed parts
	peerCTAs  int
	span      span // part of the ring for the next step
	launch    device.Kernel
	freeParts sync.Pool // free list of *Parts
}

var _ Owner = (*Kernel)(nil)

// NewKernel returns the path, or ErrNotSupported with the reason why the queue does not support it.
func NewKernel(env *Env) (Mover, error) {
	l, err := env.launcher(device.KernelCopyList)
	if err != nil {
		return nil, err
	}
	return &Kernel{
		env: env, launcher: l, summing: hasKernel(l, device.KernelCopyPagedSum),
		canReport: hasKernel(l, device.KernelCopyParts) && hasKernel(l, device.KernelCopyPartsSum),
		peerCTAs:  min(max(env.Device.Info().Multiprocs, minPeerCTAs), maxPeerCTAs),
	}, nil
}

// Supports implements Mover.
func (k *Kernel) Supports(b *Batch) (ok, sums bool) {
	return true, k.summing && b.WantsSums() && describe.SumsFit(b.At.Batch.Paged, min(k.env.Ring.maxSpan, summedStep))
}

// Prepare implements Owner.
func (k *Kernel) Prepare() error { return k.env.Ring.prepare() }

// Quiesce implements Owner. All kernels ran on the stream's queue, which is already closed.
func (k *Kernel) Quiesce(context.Context) (failed, err error) { return nil, nil }

// Free implements Owner. Staged uses the ring too, but a device with Staged also has this path.
func (k *Kernel) Free() error { return k.env.Ring.free() }

// Fits implements Mover.
func (k *Kernel) Fits(b *Batch, f InFlight) (ok bool) {
	if !f.admits(describe.MaxLaunches + 1) {
		return false
	}
	want := uint64(0)
	switch {
	case k.reportsParts(b):
		want = b.At.PartsSpace(k.most(b))
	case b.At.Summed:
		want = min(b.At.Space(b.Descs), summedStep)
	default:
		want = b.At.Space(b.Descs)
	}
	k.span, ok = k.env.Ring.reserve(want)
	return ok
}

// most returns the maximum number of thread blocks of a kernel for b.
func (k *Kernel) most(b *Batch) int {
	most := DefaultCTAs
	if b.Ways&describe.Peer != 0 {
		most = k.peerCTAs
	}
	return k.env.ctas(b, most)
}

// reportsParts reports whether a launch should report completed parts of b.
func (k *Kernel) reportsParts(b *Batch) bool { return k.canReport && b.At.ReportsParts() }

// Step writes descriptors into the ring and launches kernels that read them, until b is completely
// issued, the span is full, or the step has the maximum number of launches. The device reads the
// descriptors when a kernel runs, so they stay until the step's event is done. If completed parts
// of b are to be reported and a page group fits, the step is a single launch that reports them.
func (k *Kernel) Step(b *Batch, st *Step) (done bool, err error) {
	sp, most := k.span, k.most(b)
	if k.reportsParts(b) {
		if done, err = k.parts(b, st, most); st.Calls > 0 {
			return done, err
		}
	}
	for st.Calls < describe.MaxLaunches && st.Bytes < b.limit() && err == nil {
		t := describe.Table{
			Dev: sp.dev, Buf: sp.buf, Limit: b.limit() - st.Bytes, Left: b.Bytes - b.Sent - st.Bytes,
		}
		used := b.At.Launch(&t, &k.launch)
		if used == 0 {
			break
		}
		if t.Rows.Words > 0 {
			t.Rows.At += sp.start()
			st.sums = append(st.sums, t.Rows)
		}
		sp.buf, sp.dev = sp.buf[used:], sp.dev+mem.DevAddr(used)
		st.Calls++
		st.Bytes += t.Bytes
		k.launch.CTAs = min(most, k.launch.CTAs)
		err = k.launcher.Launch(&k.launch)
	}
	st.ring, st.ringEnd = k.env.Ring, sp.start()
	st.ring.take(st.ringEnd)
	return err == nil && b.At.Done(), err
}

// parts launches a kernel for as many whole page groups as fit. If none fits, it leaves st
// unchanged.
func (k *Kernel) parts(b *Batch, st *Step, ctas int) (done bool, err error) {
	sp := k.span
	e, ok := k.freeParts.Get().(*Parts)
	if !ok {
		e = new(Parts)
	}
	*e = Parts{Parts: describe.Parts{Rows: e.Rows}, of: k, table: sp.buf}
	ctas = max(min(ctas, b.PagedDescs), 1)
	t := describe.Table{Dev: sp.dev, Buf: sp.buf, Limit: b.limit()}
	used := b.At.LaunchParts(&t, &k.launch, ctas, &e.Parts)
	if used == 0 {
		return false, nil
	}
	st.Calls, st.Bytes = 2, t.Bytes
	st.ring, st.ringEnd = k.env.Ring, sp.start()+used
	st.ring.take(st.ringEnd)
	err = k.launcher.Launch(&k.launch)
	if e.end = Record(k.env.Queue, &err); e.end == nil {
		st.Lost = true
	} else {
		st.Event = e
	}
	return err == nil && b.At.Done(), err
}
