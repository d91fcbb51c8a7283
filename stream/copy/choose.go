package copy

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/describe"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// The reasons that completions carry, beside those of package plan.
const (
	ReasonForced     = "the path was forced by an option"
	ReasonOnly       = "the only path of this device"
	ReasonUnfit      = "the forced path cannot carry this batch: by copy engine"
	ReasonUnprepared = "the planned path could not get its memory: the next best"
	ReasonRefused    = "the planned path took no more batches: by copy engine"
	ReasonEmpty      = "nothing to copy"
	ReasonUnstarted  = "ended before it started"
)

// Planner chooses a path for each batch. It is told of the outcome of each choice of its own. Safe for concurrent use; it
// must not block.
type Planner interface {
	// Choose returns how a batch should travel, by one of the paths in can.
	Choose(r plan.Request, can plan.Paths) plan.Choice
	// Observe says what a batch took that succeeded, from its start or from the end of the batch before it.
	Observe(c plan.Choice, r plan.Request, actual time.Duration)
}

// choose sets the path of o and what goes with it. An error says that the batch cannot be taken.
func (s *Stream) choose(ctx context.Context, o *op) error {
	forced := s.opts.Path
	switch {
	case o.work.Runs == 0:
		o.choice.Reason = ReasonEmpty
		return nil
	case forced == stream.PathNone:
		return s.plan(ctx, o)
	}
	if ok, sums := s.movers[forced].Takes(&o.work); ok {
		o.choice, o.work.At.Summed = plan.Choice{Path: forced, Reason: s.forcedReason()}, sums
	} else {
		o.choice = plan.Choice{Path: stream.PathCopyEngine, Reason: ReasonUnfit}
	}
	return nil
}

// OnlyPath returns the path of a device that has one path, else PathNone. A device without copy
// engines copies by its kernels, which checksum each byte as they copy it.
func OnlyPath(dev device.Device) stream.Path {
	if dev.Info().CopyEngines == 0 {
		return stream.PathKernel
	}
	return stream.PathNone
}

// forcedReason returns why every batch takes the path of the options.
func (s *Stream) forcedReason() string {
	if s.opts.Path == OnlyPath(s.dev) {
		return ReasonOnly
	}
	return ReasonForced
}

// plan has the planner choose, among the paths that take the batch. Where it asks for sums, the planner hears which of them
// leave those to a CPU. A path that cannot get what it needs is lost, and the batch tells why.
func (s *Stream) plan(ctx context.Context, o *op) error {
	s.readmit()
	can, summing := s.can(o)
	o.request = request(&o.work)
	if o.request.Summed = o.work.WantsSums(); o.request.Summed {
		o.request.Unsummed = can &^ summing
	}
	if o.request.Ahead = time.Duration(s.ahead.Load()); o.request.Ahead > 0 {
		o.request.Alone = alone(can, stream.Path(s.last.Load()))
	}
	for unprepared := false; ; unprepared = true {
		o.choice = s.planner.Choose(o.request, can)
		o.planned = true
		o.work.ChunkBytes, o.work.CTAs, o.work.At.Summed = o.choice.ChunkBytes, o.choice.CTAs, summing.Has(o.choice.Path)
		if unprepared {
			o.choice.Reason = ReasonUnprepared
		}
		lost, err := s.ready(ctx, o.choice.Path)
		if lost == nil || err != nil {
			return err
		}
		o.lost = errors.Join(o.lost, s.lose(o.choice.Path, lost))
		can = can.Without(o.choice.Path)
	}
}

// can returns the paths that could carry o's batch, and which of them would make the sums that it asks for.
func (s *Stream) can(o *op) (can, summing plan.Paths) {
	for p := range plan.Paths(s.able.Load()).All {
		ok, sums := s.movers[p].Takes(&o.work)
		if ok {
			can = can.With(p)
		}
		if ok && sums {
			summing = summing.With(p)
		}
	}
	return can, summing
}

// alone returns those of can by which a batch waits until all ahead of it has ended, which last took that path.
func alone(can plan.Paths, last stream.Path) plan.Paths {
	if isApart(last) {
		return can.Without(last)
	}
	return can & apartPaths
}

// request is what the planner is asked.
func request(b *move.Batch) plan.Request {
	r := plan.Request{Dir: direction(b.Ways), Pieces: b.Copies, Runs: b.Runs, Bytes: b.Bytes, Awaited: b.At.Batch.Awaited}
	switch r.Dir {
	case plan.H2D:
		r.HostRuns = b.SrcRuns
	case plan.D2H:
		r.HostRuns = b.DstRuns
	case plan.D2D, plan.Peer:
	}
	if p := b.At.Batch.Paged; p != nil && len(b.At.Batch.Dst) == 0 && (p.Dir == mem.ToSlots) == (r.Dir == plan.D2H) {
		r.HostRows = b.SlotRows
	}
	return r
}

// direction is a batch's direction as the planner knows it. What moves both ways, or partly within one memory, goes by the part
// that crosses the bus.
func direction(w describe.Ways) plan.Direction {
	switch {
	case w&describe.H2D != 0:
		return plan.H2D
	case w&describe.D2H != 0:
		return plan.D2H
	case w&describe.Peer != 0:
		return plan.Peer
	}
	return plan.D2D
}

// account ends what choose began, for a batch that is about to resolve: c gets the prediction, and the planner the outcome.
// One goroutine at a time calls it.
func (s *Stream) account(o *op, c *stream.Completion, err error) {
	s.ahead.Add(-int64(o.choice.Predicted))
	before := time.Duration(s.finished.Swap(int64(c.Finished.Sub(s.epoch))))
	if o.Started.IsZero() {
		return
	}
	c.Predicted = o.choice.Predicted
	if err != nil {
		return
	}
	c.Summed = o.work.At.Summed
	if !o.planned || o.held || o.paced {
		return // it waited for something else than the path
	}
	if left := o.left.Load(); left != 0 && time.Duration(s.finished.Load()-left) > unseen {
		return // it waited for somebody to look
	}
	s.planner.Observe(o.choice, o.request, c.Finished.Sub(s.from(o, before)))
}

// from returns when o began to take time of its own: when it started, or when the batch before it had finished.
func (s *Stream) from(o *op, finished time.Duration) time.Time {
	if before := s.epoch.Add(finished); before.After(o.Started) {
		return before
	}
	return o.Started
}
