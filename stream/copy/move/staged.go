package move

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

const (
	// stagedCTAs is the default number of thread blocks that gather or scatter. More make no
	// difference on an idle device (H200, 4 KiB pieces), because device memory is much faster than
	// the bus. stagedBackgroundCTAs is the default if there is other work, where a kernel has to
	// wait for multiprocessors and should then end soon.
	stagedCTAs           = 16
	stagedBackgroundCTAs = 32
	// stagedCalls is the maximum number of calls of a step in addition to its copies: a launch, two
	// waits and three records.
	stagedCalls = 6
	// stagedChunks is the minimum number of chunks of a batch, so that one is gathered while
	// another crosses the bus. stagedLeast is the minimum size of these chunks: the bus is idle for
	// 3 us between two of them.
	stagedChunks = 4
	stagedLeast  = 1 << 20
)

// Staged is the path between host and device memory through staging memory on the device. A copy
// engine crosses the bus, one host run at a time, and a kernel gathers or scatters the pieces
// within device memory. A step is a chunk of staging memory:
//
//	to host:    kernel gathers -> event -> engine copies
//	to device:  engine copies -> event -> kernel scatters
//
// If the batch requests sums, the kernel computes them from the pieces, each of which is then a
// leaf.
//
// The kernel runs on the stream's queue and the engine on aux, so that a chunk is gathered while
// the previous one crosses the bus. Only the stream's queue accesses the batch's device memory, and
// only aux its host memory, which keeps staged batches in order. Join orders them with other paths.
// A chunk's memory is reused when the events of both queues are done.
type Staged struct {
	env      *Env
	launcher device.Launcher
	aux      device.Queue
	copier   copier // of aux
	summing  bool   // the device has the kernel for sums
	area     *mem.Region
	staging  space // of area
	place    describe.Place
	placeEnd uint64
	span     span // of the next step, like place
	launch   device.Kernel
	chunk    describe.Chunk // of the current step
	// behind is set if aux is ordered after all work that other paths have issued. ahead is set if
	// aux has work after which the stream's queue is not ordered.
	behind, ahead bool
}

var (
	_ Owner  = (*Staged)(nil)
	_ Joiner = (*Staged)(nil)
)

// NewStaged returns the path with this number of bytes of staging memory, or ErrNotSupported with
// the reason why staging is not possible.
func NewStaged(env *Env, bytes int64) (Mover, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("staging memory is turned off: %w", errdefs.ErrNotSupported)
	}
	l, err := env.launcher(device.KernelCopyList)
	if err != nil {
		return nil, err
	}
	p := &Staged{env: env, launcher: l, summing: hasKernel(l, device.KernelCopyListSum)}
	p.staging.setSize(bytes)
	return p, nil
}

// Supports implements Mover. Staging has no advantage within host or device memory. A summed leaf
// must fit into a chunk.
func (p *Staged) Supports(b *Batch) (ok, sums bool) {
	return b.Ways == describe.H2D || b.Ways == describe.D2H, p.summing && b.WantsSums() && p.staging.maxSpan >= mem.LeafBytes
}

// Prepare opens the second queue and allocates staging memory.
func (p *Staged) Prepare() (err error) {
	if err := p.env.Ring.prepare(); err != nil {
		return err
	}
	if p.aux == nil {
		if p.aux, err = p.env.Device.OpenQueue(device.QueueOptions{HighPriority: p.env.HighPriority}); err != nil {
			return fmt.Errorf("open queue: %w", err)
		}
		p.copier = newCopier(p.aux)
		p.chunk = describe.NewChunk(p.copier.chunk())
	}
	if p.area == nil {
		if p.area, err = p.env.Device.Alloc(int64(p.staging.size), device.AllocOptions{}); err != nil {
			return fmt.Errorf("allocate %d bytes for staging: %w", p.staging.size, err)
		}
	}
	return nil
}

// Fits reserves staging memory for the next chunk, and descriptors for slightly more than its
// expected number of pieces. A chunk may end early if it runs out of descriptors.
//
// A batch is divided into several chunks that overlap, unless it sets ChunkBytes. ChunkBytes is set
// if kernels wait long for multiprocessors, because each chunk waits once, whatever its size. If
// the batch has layers that may be awaited, a chunk is one page group, if it fits, so that it
// completes as a whole.
func (p *Staged) Fits(b *Batch, f InFlight) bool {
	if !f.admits(stagedCalls + p.copier.calls(p.copier.chunk())) {
		return false
	}
	chunk := max(uint64(b.Bytes)/stagedChunks, stagedLeast)
	if b.ChunkBytes > 0 {
		// A chunk holds at least one leaf: see Supports.
		if chunk = uint64(b.ChunkBytes); b.At.Summed {
			chunk = max(chunk, mem.LeafBytes)
		}
	}
	if layer, ok := b.At.LayerLeft(); ok {
		chunk = max(uint64(layer), stagedLeast)
	}
	chunk = min(chunk, p.staging.maxSpan, uint64(b.Bytes-b.Sent))
	// Unaligned runs need a little more space.
	at, size, end, ok := p.staging.reserve(chunk + uint64(min(p.copier.chunk(), b.Copies))*2*describe.RunAlign)
	if !ok {
		return false
	}
	piece := min(max(uint64(b.Bytes)/uint64(b.Copies), 1), device.PieceBytes)
	if b.At.Summed {
		piece = min(piece, mem.LeafBytes)
	}
	p.span, ok = p.env.Ring.reserve(describe.ChunkSpace(int(chunk/piece*5/4+64), b.At.Summed))
	p.place = describe.Place{Area: p.area, At: at, Bytes: min(chunk, size), Space: size, Buf: p.span.buf}
	p.placeEnd = end
	return ok
}

// Step issues a chunk.
func (p *Staged) Step(b *Batch, st *Step) (done bool, err error) {
	c, toHost := &p.chunk, b.Ways == describe.D2H
	c.Describe(&b.At, p.place, toHost)
	st.Bytes = int64(c.Bytes)
	args, name := device.ListArgs{Descs: p.span.dev, Count: uint64(c.Descs)}, device.KernelCopyList
	if b.At.Summed {
		sums := describe.ChunkSpace(c.Descs, false)
		args.Sums, name = p.span.dev+mem.DevAddr(sums), device.KernelCopyListSum
		if c.Rows.Words > 0 {
			c.Rows.At += p.span.start() + sums
			st.sums = append(st.sums, c.Rows)
		}
	}
	p.launch = args.Kernel(name, min(p.ctas(b), c.Descs))
	st.ring, st.ringEnd = p.env.Ring, p.span.start()+describe.ChunkSpace(c.Descs, b.At.Summed)
	st.staging, st.stagingEnd = &p.staging, p.placeEnd
	st.ring.take(st.ringEnd)
	st.staging.take(st.stagingEnd)

	var events eventSet
	host, part := c.Runs()
	st.Calls = stagedCalls + p.copier.calls(len(host)) - 1
	if toHost {
		err = p.toHost(&events, host, part)
	} else {
		err = p.toDevice(&events, part, host)
	}
	if err != nil && !p.fence(&events, &err) {
		events.Close()
		st.Lost = true
		return true, err
	}
	st.Event = events
	return b.At.Done(), err
}

func (p *Staged) ctas(b *Batch) int {
	if b.ChunkBytes > 0 {
		return p.env.ctas(b, stagedBackgroundCTAs)
	}
	return p.env.ctas(b, stagedCTAs)
}

// toHost launches the kernel that gathers, and then issues the engine's copies.
func (p *Staged) toHost(events *eventSet, dst, src []mem.Extent) error {
	if err := p.launcher.Launch(&p.launch); err != nil {
		return err
	}
	gathered, err := events.record(p.env.Queue)
	if err != nil {
		return err
	}
	if err := p.aux.Wait(gathered); err != nil {
		return fmt.Errorf("wait for gathering: %w", err)
	}
	p.behind, p.ahead = true, true
	if err := p.copier.copy(dst, src); err != nil {
		return err
	}
	_, err = events.record(p.aux)
	return err
}

// toDevice issues the engine's copies, and then launches the kernel that scatters.
func (p *Staged) toDevice(events *eventSet, dst, src []mem.Extent) error {
	if !p.behind {
		if err := follow(p.aux, p.env.Queue); err != nil {
			return err
		}
		p.behind = true
	}
	if err := p.copier.copy(dst, src); err != nil {
		return err
	}
	recorded, err := events.record(p.aux)
	if err != nil {
		return err
	}
	if err := p.env.Queue.Wait(recorded); err != nil {
		return fmt.Errorf("wait for staging: %w", err)
	}
	p.ahead = false
	if err := p.launcher.Launch(&p.launch); err != nil {
		return err
	}
	_, err = events.record(p.env.Queue)
	return err
}

// fence records events on both queues for a step that failed half-way, because either queue may
// have work of the step. It reports whether both events were recorded.
func (p *Staged) fence(events *eventSet, err *error) bool {
	p.ahead = true
	for _, q := range []device.Queue{p.env.Queue, p.aux} {
		e := Record(q, err)
		if e == nil {
			return false
		}
		*events = append(*events, e)
	}
	return true
}

// Join implements Joiner.
func (p *Staged) Join() error {
	p.behind = false
	if !p.ahead {
		return nil
	}
	if err := follow(p.env.Queue, p.aux); err != nil {
		return err
	}
	p.ahead = false
	return nil
}

// Quiesce implements Owner.
func (p *Staged) Quiesce(ctx context.Context) (failed, err error) {
	if p.aux == nil {
		return nil, nil
	}
	if failed, err = CloseQueue(ctx, p.aux); err == nil {
		p.aux = nil
	}
	return failed, err
}

// Free implements Owner.
func (p *Staged) Free() error {
	if p.area == nil {
		return nil
	}
	if err := p.env.Device.Free(p.area); err != nil {
		return fmt.Errorf("free staging memory: %w", err)
	}
	p.area = nil
	return nil
}
