package copy

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

const (
	// stagedCTAs is how many thread blocks gather or scatter where nobody says otherwise. More make no difference on an idle
	// device (H200, 4 KiB pieces): within device memory they are much faster than the bus. Beside other work, where a
	// kernel has to wait for its multiprocessors, it should be through soon once it has them.
	stagedCTAs           = 16
	stagedBackgroundCTAs = 32
	// stagedCalls is what a step counts for: a launch, two waits, three records, and copies.
	stagedCalls = 6
)

// staged is the path between host and device memory on which a copy engine crosses the bus, host run by host run, and a
// kernel gathers or scatters the pieces within device memory. A step is a chunk of staging memory:
//
//	to host:    kernel gathers -> event -> engine copies
//	to device:  engine copies -> event -> kernel scatters
//
// Where the batch asks for sums, the kernel makes them, of what it gathers or scatters: each leaf is a piece.
//
// The kernel runs on the stream's queue and the engine on one of the path's own, so that a chunk is gathered while the one
// before it crosses the bus. Under the background policy a chunk is as large as the planner says (see room). All touching of the batch's device memory is on the first queue and all touching of its host
// memory on the second; so staged batches need no more than that to stay in order among themselves. Towards other paths,
// turn joins the queues. A chunk's memory is used again when the events of both queues are done.
type staged struct {
	s        *Stream
	launcher device.Launcher
	aux      device.Queue
	batcher  device.BatchCopier // aux, if it can; else nil
	summing  bool               // the device has the kernel for sums
	area     *mem.Region
	launch   device.Kernel
	chunk    chunk // that is put together
	// behind: aux comes after all that other paths have issued. ahead: aux holds work that the stream's queue does not
	// come after.
	behind, ahead bool
}

func (p *staged) available() error {
	if p.s.opts.StagingBytes < 0 {
		return fmt.Errorf("staging memory is turned off: %w", errdefs.ErrNotSupported)
	}
	p.launcher, _ = p.s.queue.(device.Launcher)
	if p.launcher == nil {
		return fmt.Errorf("it runs no kernels: %w", errdefs.ErrNotSupported)
	}
	p.summing = hasKernel(p.launcher, device.KernelCopyListSum)
	return nil
}

// takes: within host or device memory there is nothing to gain.
func (p *staged) takes(v *survey) bool { return v.ways == wayH2D || v.ways == wayD2H }

func (p *staged) calls() int { return stagedCalls + runCalls(p.batcher, p.mostRuns()) }

// prepare opens the second queue and allocates staging memory.
func (p *staged) prepare() (err error) {
	if err := p.s.makeRing(); err != nil {
		return err
	}
	if p.aux == nil {
		if p.aux, err = p.s.dev.OpenQueue(device.QueueOptions{HighPriority: p.s.opts.HighPriority}); err != nil {
			return fmt.Errorf("open queue: %w", err)
		}
		p.batcher = batcher(p.aux)
		p.chunk.host, p.chunk.part = make([]mem.Extent, p.mostRuns()), make([]mem.Extent, p.mostRuns())
	}
	if p.area == nil {
		bytes := p.areaBytes()
		if p.area, err = p.s.dev.Alloc(bytes, device.AllocOptions{}); err != nil {
			return fmt.Errorf("allocate %d bytes for staging: %w", bytes, err)
		}
		p.s.mu.Lock()
		p.s.staging = newPositions(bytes)
		p.s.mu.Unlock()
	}
	return nil
}

func (p *staged) areaBytes() int64 { return int64(align(uint64(p.s.opts.StagingBytes), 4*tableAlign)) }

// sums reports whether the path fills the sums that a batch asks for: as long as a leaf fits into a chunk.
func (p *staged) sums(o *op) bool {
	g := o.at.batch.Paged
	return p.summing && g != nil && len(g.Sums) > 0 && newPositions(p.areaBytes()).maxChunk >= mem.LeafBytes
}

// step issues a chunk.
func (p *staged) step(o *op, sp span, it *item) (done bool, err error) {
	c := &p.chunk
	it.bytes = c.describe(p.area, o, sp)
	args, name := device.ListArgs{Descs: sp.dev, Count: uint64(c.descs)}, device.KernelCopyList
	at := sp.end - uint64(len(sp.buf))
	if c.summed {
		sums := descSpace(c.descs, false)
		args.Sums, name = sp.dev+mem.DevAddr(sums), device.KernelCopyListSum
		it.sums = c.sumsAt(at + sums)
	}
	p.launch = args.Kernel(name, min(p.ctas(o), c.descs))
	it.ringEnd = at + descSpace(c.descs, c.summed)
	it.stageEnd = sp.stage.end

	it.calls = p.calls() - 1
	var events joint
	if o.stats.ways == wayD2H {
		err = p.toHost(&events, c.host[:c.runs], c.part[:c.runs])
	} else {
		err = p.toDevice(&events, c.part[:c.runs], c.host[:c.runs])
	}
	if err != nil && !p.fence(&events, &err) {
		events.Close()
		it.lost = true
		return true, err
	}
	it.event = events
	return o.at.described(), err
}

func (p *staged) ctas(o *op) int {
	if o.choice.ChunkBytes > 0 {
		return p.s.ctas(o, stagedBackgroundCTAs)
	}
	return p.s.ctas(o, stagedCTAs)
}

// mostRuns is how many runs fit into one chunk.
func (p *staged) mostRuns() int { return runStep(p.batcher) }

// toHost has the kernel gather, and the engine copy after it.
func (p *staged) toHost(events *joint, dst, src []mem.Extent) error {
	if err := p.launcher.Launch(&p.launch); err != nil {
		return err
	}
	gathered, err := events.record(p.s.queue)
	if err != nil {
		return err
	}
	if err := p.aux.Wait(gathered); err != nil {
		return fmt.Errorf("wait for gathering: %w", err)
	}
	p.behind, p.ahead = true, true
	if err := p.cross(dst, src); err != nil {
		return err
	}
	_, err = events.record(p.aux)
	return err
}

// toDevice has the engine copy, and the kernel scatter after it.
func (p *staged) toDevice(events *joint, dst, src []mem.Extent) error {
	if !p.behind {
		if err := after(p.aux, p.s.queue); err != nil {
			return err
		}
		p.behind = true
	}
	if err := p.cross(dst, src); err != nil {
		return err
	}
	landed, err := events.record(p.aux)
	if err != nil {
		return err
	}
	if err := p.s.queue.Wait(landed); err != nil {
		return fmt.Errorf("wait for staging: %w", err)
	}
	p.ahead = false
	if err := p.launcher.Launch(&p.launch); err != nil {
		return err
	}
	_, err = events.record(p.s.queue)
	return err
}

// cross has the engine copy the runs of a chunk.
func (p *staged) cross(dst, src []mem.Extent) error { return copyRuns(p.aux, p.batcher, dst, src) }

// fence records the events of a step that failed half-way, on both queues: either may have work of it. It reports whether
// both can say when they stop.
func (p *staged) fence(events *joint, err *error) bool {
	p.ahead = true
	for _, q := range []device.Queue{p.s.queue, p.aux} {
		e := recordTwice(q, err)
		if e == nil {
			return false
		}
		*events = append(*events, e)
	}
	return true
}

// turn joins the queues: what the stream's queue does from now on comes after what aux was given.
func (p *staged) turn() error {
	p.behind = false
	if !p.ahead {
		return nil
	}
	if err := after(p.s.queue, p.aux); err != nil {
		return err
	}
	p.ahead = false
	return nil
}

func (p *staged) quiesce(ctx context.Context) (failed, err error) {
	if p.aux == nil {
		return nil, nil
	}
	if failed, err = closeQueue(ctx, p.aux); err == nil {
		p.aux = nil
	}
	return failed, err
}

func (p *staged) free() error {
	if p.area == nil {
		return nil
	}
	if err := p.s.dev.Free(p.area); err != nil {
		return fmt.Errorf("free staging memory: %w", err)
	}
	p.area = nil
	return nil
}

// after makes what q does from now on come after all that other was given so far. The event may be given back at once:
// q waits for the state that it stood for.
func after(q, other device.Queue) error {
	e, err := other.Record()
	if err != nil {
		return fmt.Errorf("record event: %w", err)
	}
	defer e.Close()
	if err := q.Wait(e); err != nil {
		return fmt.Errorf("wait for the other queue: %w", err)
	}
	return nil
}
