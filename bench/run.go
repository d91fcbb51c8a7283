package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	smallBytes = 4 << 10 // the block whose latency and submission are timed
	// submitBlocks is the number of blocks of the batch whose submission is timed.
	submitBlocks = 1024
	warmup       = 50
)

// Run measures dev. It allocates twice PoolBytes of device memory and twice the longest transfer of pinned memory, and
// frees them before it returns. It fails with ErrCorrupt if wrong bytes arrived, and with the context's cause if ctx ends.
func Run(ctx context.Context, dev device.Device, open Opener, o Options) (_ *Report, err error) {
	o = o.withDefaults(dev.Info())
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	r, err := newRig(ctx, dev, open, &o)
	if err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	b := &bench{rig: r, open: open, o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0)), rep: newReport(dev.Info(), &o)}
	// Every path has its bandwidths, then its latency; the reference comes first.
	b.total = 1 + len(o.Paths)*(len(o.Sizes)*4+1)
	b.step("one large copy")
	if err := b.reference(ctx); err != nil {
		return nil, fmt.Errorf("benchmark one large copy: %w", err)
	}
	for _, path := range o.Paths {
		if err := b.path(ctx, path); err != nil {
			return nil, fmt.Errorf("benchmark path %s: %w", PathName(path), err)
		}
	}
	return b.rep, nil
}

// bench is a run in progress.
type bench struct {
	rig         *rig
	open        Opener
	o           *Options
	rng         *rand.Rand
	rep         *Report
	done, total int
}

func (b *bench) step(what string) {
	if b.o.Progress != nil {
		b.o.Progress(b.done, b.total, what)
	}
	b.done++
}

// withStream opens a stream for use and closes it again, waiting for what use left behind.
func (b *bench) withStream(path stream.Path, use func(stream.Stream) error) (err error) {
	s, err := b.open(path)
	if err != nil {
		return err
	}
	// In the rig's list until it is closed, so that a stream that does not close keeps the rig from freeing its memory.
	b.rig.onClose(s.Close)
	err = use(s)
	last := len(b.rig.closers) - 1
	if cerr := b.rig.closers[last](); cerr != nil {
		return errors.Join(err, cerr)
	}
	b.rig.closers = b.rig.closers[:last]
	return err
}

// reference measures one large copy each way, and both ways at once.
func (b *bench) reference(ctx context.Context) error {
	n := b.o.ReferenceBytes
	in := &mem.Batch{Dst: []mem.Extent{{Region: b.rig.devDst, Len: n}}, Src: []mem.Extent{{Region: b.rig.hostSrc, Len: n}}}
	out := &mem.Batch{Dst: []mem.Extent{{Region: b.rig.hostDst, Len: n}}, Src: []mem.Extent{{Region: b.rig.devSrc, Len: n}}}
	if err := b.rig.poisonDestinations(ctx); err != nil {
		return err
	}
	err := b.withStream(stream.PathCopyEngine, func(s stream.Stream) error {
		return b.withStream(stream.PathCopyEngine, func(other stream.Stream) (err error) {
			timed := func(work ...job) float64 {
				if err != nil {
					return 0
				}
				var g []float64
				g, err = repeat(b.o.Reps, func() (float64, error) { return rate(ctx, work...) })
				return median(g)
			}
			ref := &b.rep.Reference
			ref.ToDeviceGBps = timed(job{s, in})
			ref.ToHostGBps = timed(job{s, out})
			ref.BothGBps = timed(job{s, in}, job{other, out})
			return err
		})
	})
	if err != nil {
		return err
	}
	// Both directions have run: the host's copy is checked in place, then the device's through it.
	if err := checkPattern(b.rig.hostDst.Bytes()[:n], devTag, 0); err != nil {
		return fmt.Errorf("device to host: %w", err)
	}
	p := &plan{size: n, dir: ToDevice, hostBlock: []uint32{0}, devBlock: []uint32{0}, devPool: []uint32{0}}
	if err := b.rig.check(ctx, p); err != nil {
		return fmt.Errorf("host to device: %w", err)
	}
	return nil
}

// path measures one path, or notes why it is not there.
func (b *bench) path(ctx context.Context, path stream.Path) error {
	err := b.withStream(path, func(s stream.Stream) error {
		for _, size := range b.o.Sizes {
			for _, layout := range []Layout{HostContiguous, HostScattered} {
				for _, dir := range []Direction{ToDevice, ToHost} {
					b.step(fmt.Sprintf("%s %s %s, %s", PathName(path), bytesText(size), dir, layout))
					if err := b.point(ctx, s, path, size, dir, layout); err != nil {
						return fmt.Errorf("%s %s, %s: %w", bytesText(size), dir, layout, err)
					}
				}
			}
		}
		b.step(PathName(path) + " latency")
		if err := b.latency(ctx, s, path); err != nil {
			return fmt.Errorf("latency: %w", err)
		}
		return nil
	})
	if errors.Is(err, errdefs.ErrNotSupported) {
		b.rep.Missing = append(b.rep.Missing, Missing{Path: PathName(path), Reason: err.Error()})
		b.done = 1 + (slices.Index(b.o.Paths, path)+1)*(len(b.o.Sizes)*4+1)
		return nil
	}
	return err
}

func (b *bench) point(ctx context.Context, s stream.Stream, path stream.Path, size int64, dir Direction, layout Layout) error {
	if err := b.rig.poisonDestinations(ctx); err != nil {
		return err
	}
	p := newPlan(b.rig, b.o, size, dir, layout)
	work := make([]job, len(p.batches))
	for i := range p.batches {
		work[i] = job{s, &p.batches[i]}
	}
	gbps, err := repeat(b.o.Reps, func() (float64, error) {
		p.shuffle(b.rig, b.rng)
		g, err := rate(ctx, work...)
		if err != nil {
			return 0, err
		}
		return g, b.rig.check(ctx, p)
	})
	if err != nil {
		return err
	}
	b.rep.add(Point{
		Path: PathName(path), Size: size, Direction: dir, Layout: layout, Bytes: p.bytes(),
		GBps: median(gbps), MinGBps: slices.Min(gbps), MaxGBps: slices.Max(gbps),
	})
	return nil
}

// latency times single small blocks from Submit to done, and the submission alone of many.
func (b *bench) latency(ctx context.Context, s stream.Stream, path stream.Path) error {
	l := Latency{Path: PathName(path)}
	for _, dir := range []Direction{ToDevice, ToHost} {
		o := Options{Bytes: smallBytes, PoolBytes: b.o.PoolBytes, BatchBytes: smallBytes}
		p := newPlan(b.rig, &o, smallBytes, dir, HostScattered)
		p.shuffle(b.rig, b.rng)
		h := hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)
		for i := range warmup + b.o.Samples {
			start := time.Now()
			t, err := s.Submit(ctx, &p.batches[0])
			if err != nil {
				return err
			}
			if err := t.Wait(ctx); err != nil {
				return err
			}
			if i < warmup {
				continue
			}
			if err := h.RecordValue(time.Since(start).Nanoseconds()); err != nil {
				return fmt.Errorf("record latency: %w", err)
			}
		}
		p50, p99 := float64(h.ValueAtQuantile(50))/1e3, float64(h.ValueAtQuantile(99))/1e3
		if dir == ToDevice {
			l.ToDeviceP50Micros, l.ToDeviceP99Micros = p50, p99
		} else {
			l.ToHostP50Micros, l.ToHostP99Micros = p50, p99
		}
	}
	blocks := min(submitBlocks, b.o.Bytes/smallBytes)
	if blocks > 0 {
		o := Options{Bytes: blocks * smallBytes, PoolBytes: b.o.PoolBytes, BatchBytes: blocks * smallBytes, Paged: b.o.Paged}
		p := newPlan(b.rig, &o, smallBytes, ToDevice, HostScattered)
		nanos, err := repeat(b.o.Reps*10, func() (float64, error) {
			p.shuffle(b.rig, b.rng)
			start := time.Now()
			t, err := s.Submit(ctx, &p.batches[0])
			took := time.Since(start)
			if err != nil {
				return 0, err
			}
			return float64(took.Nanoseconds()) / float64(blocks), t.Wait(ctx)
		})
		if err != nil {
			return err
		}
		l.SubmitNanosPerBlock = median(nanos)
	}
	b.rep.Latency = append(b.rep.Latency, l)
	return nil
}

// job is a batch for a stream.
type job struct {
	s stream.Stream
	b *mem.Batch
}

// rate submits the jobs, waits for all and returns how fast they went together, in GB/s.
func rate(ctx context.Context, work ...job) (float64, error) {
	tickets := make([]*stream.Ticket, 0, len(work))
	var bytes int64
	start := time.Now()
	for _, j := range work {
		t, err := j.s.Submit(ctx, j.b)
		if err != nil {
			return 0, err
		}
		tickets = append(tickets, t)
		bytes += j.b.Bytes()
	}
	for _, t := range tickets {
		if err := t.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return float64(bytes) / float64(time.Since(start).Nanoseconds()), nil
}

// repeat runs f once for nothing and then n times.
func repeat(n int, f func() (float64, error)) ([]float64, error) {
	all := make([]float64, 0, n+1)
	for range n + 1 {
		v, err := f()
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all[1:], nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
