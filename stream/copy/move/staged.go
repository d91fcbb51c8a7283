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
	// stagedCTAs is how many thread blocks gather or scatter where nobody says otherwise. More make no difference on an idle
	// device (H200, 4 KiB pieces): within device memory they are much faster than the bus. Beside other work, where a
	// kernel has to wait for its multiprocessors, it should be through soon once it has them.
	stagedCTAs           = 16
	stagedBackgroundCTAs = 32
	// stagedCalls is what a step counts for: a launch, two waits, three records, and copies.
	stagedCalls = 6
	// stagedChunks is into how many chunks a batch is cut at least, so that one is gathered while another crosses the bus,
	// and stagedLeast how short they may get by that: between two chunks the bus is idle for 3 us.
	stagedChunks = 4
	stagedLeast  = 1 << 20
)

// Staged is the path between host and device memory on which a copy engine crosses the bus, host run by host run, and a
// kernel gathers or scatters the pieces within device memory. A step is a chunk of staging memory:
//
//	to host:    kernel gathers -> event -> engine copies
//	to device:  engine copies -> event -> kernel scatters
//
// Where the batch asks for sums, the kernel makes them, of what it gathers or scatters: each leaf is a piece.
//
// The kernel runs on the stream's queue and the engine on one of the path's own, so that a chunk is gathered while the one
// before it crosses the bus. All touching of the batch's device memory is on the first queue and all touching of its host
// memory on the second; so staged batches need no more than that to stay in order among themselves. Towards other paths,
// Join joins the queues. A chunk's memory is used again when the events of both queues are done.
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
	span     span // as place, of the next step
	launch   device.Kernel
	chunk    describe.Chunk // that is put together
	// behind: aux comes after all that other paths have issued. ahead: aux holds work that the stream's queue does not
	// come after.
	behind, ahead bool
}

var (
	_ Owner  = (*Staged)(nil)
	_ Joiner = (*Staged)(nil)
)

// NewStaged makes the path with so many bytes of staging memory, or returns why there is none: an ErrNotSupported.
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

// Supports implements Mover: within host or device memory there is nothing to gain, and a leaf that is summed has to fit into a chunk.
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

// Room reserves staging memory for the next chunk, and descriptors for the pieces that it will have on average and some
// more: a chunk may end early for want of them.
//
// A batch is cut into several chunks, so that they overlap, unless it says how large a chunk is. It does so where a kernel that
// gathers waits long for multiprocessors that something else holds: each chunk costs that wait, whatever its size. Of
// layers, for each of which somebody may wait, a chunk is one page group, if there is room for it: it lands as a whole.
func (p *Staged) Room(b *Batch, f Flight) bool {
	if !f.admits(stagedCalls + p.copier.calls(p.copier.chunk())) {
		return false
	}
	chunk := max(uint64(b.Bytes)/stagedChunks, stagedLeast)
	if b.ChunkBytes > 0 {
		if chunk = uint64(b.ChunkBytes); b.At.Summed { // a chunk has room for a leaf, whatever was planned: see Takes
			chunk = max(chunk, mem.LeafBytes)
		}
	}
	if layer, ok := b.At.LayerLeft(); ok {
		chunk = max(uint64(layer), stagedLeast)
	}
	chunk = min(chunk, p.staging.maxSpan, uint64(b.Bytes-b.Sent))
	// Runs that are not aligned take a little more.
	at, room, end, ok := p.staging.reserve(chunk + uint64(min(p.copier.chunk(), b.Copies))*2*describe.RunAlign)
	if !ok {
		return false
	}
	piece := min(max(uint64(b.Bytes)/uint64(b.Copies), 1), device.PieceBytes)
	if b.At.Summed {
		piece = min(piece, mem.LeafBytes)
	}
	p.span, ok = p.env.Ring.reserve(describe.ChunkSpace(int(chunk/piece*5/4+64), b.At.Summed))
	p.place = describe.Place{Area: p.area, At: at, Bytes: min(chunk, room), Room: room, Buf: p.span.buf}
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

	var events joint
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

// toHost has the kernel gather, and the engine copy after it.
func (p *Staged) toHost(events *joint, dst, src []mem.Extent) error {
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

// toDevice has the engine copy, and the kernel scatter after it.
func (p *Staged) toDevice(events *joint, dst, src []mem.Extent) error {
	if !p.behind {
		if err := follow(p.aux, p.env.Queue); err != nil {
			return err
		}
		p.behind = true
	}
	if err := p.copier.copy(dst, src); err != nil {
		return err
	}
	landed, err := events.record(p.aux)
	if err != nil {
		return err
	}
	if err := p.env.Queue.Wait(landed); err != nil {
		return fmt.Errorf("wait for staging: %w", err)
	}
	p.ahead = false
	if err := p.launcher.Launch(&p.launch); err != nil {
		return err
	}
	_, err = events.record(p.env.Queue)
	return err
}

// fence records the events of a step that failed half-way, on both queues: either may have work of it. It reports whether
// both can say when they stop.
func (p *Staged) fence(events *joint, err *error) bool {
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
