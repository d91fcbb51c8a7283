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

// The reasons in completions that package plan does not define.
const (
	ReasonForced     = "the path was forced by an option"
	ReasonOnly       = "the only path of this device"
	ReasonUnfit      = "the forced path cannot carry this batch: by copy engine"
	ReasonUnprepared = "the planned path could not allocate memory: the next best path"
	ReasonRefused    = "the planned path accepts no more batches: by copy engine"
	ReasonEmpty      = "no bytes to copy"
	ReasonUnstarted  = "ended before it started"
)

// Planner chooses a path for each batch and observes the results. It must be safe for concurrent
// use and must not block.
type Planner interface {
	// Choose returns the path of a batch, one of can, and its parameters.
	Choose(r plan.Request, can plan.Paths) plan.Choice
	// Observe reports the duration of a successful batch. It is measured from the start of the
	// batch or, if later, from the end of the previous batch.
	Observe(c plan.Choice, r plan.Request, actual time.Duration)
}

// choose sets o.choice and related fields. If it returns an error, the batch is not accepted.
func (s *Stream) choose(ctx context.Context, o *op) error {
	forced := s.opts.Path
	switch {
	case o.work.Runs == 0:
		o.choice.Reason = ReasonEmpty
		return nil
	case forced == stream.PathNone:
		return s.plan(ctx, o)
	}
	if ok, sums := s.movers[forced].Supports(&o.work); ok {
		o.choice, o.work.At.Summed = plan.Choice{Path: forced, Reason: s.forcedReason()}, sums
	} else {
		o.choice = plan.Choice{Path: stream.PathCopyEngine, Reason: ReasonUnfit}
	}
	return nil
}

// OnlyPath returns the path of a device that has a single path, otherwise PathNone. A device
// without copy engines copies by its kernels, which checksum each byte as they copy it.
func OnlyPath(dev device.Device) stream.Path {
	if dev.Info().CopyEngines == 0 {
		return stream.PathKernel
	}
	return stream.PathNone
}

// forcedReason returns the reason why every batch takes the path in the options.
func (s *Stream) forcedReason() string {
	if s.opts.Path == OnlyPath(s.dev) {
		return ReasonOnly
	}
	return ReasonForced
}

// plan lets the planner choose among the paths that support the batch. The request contains the
// paths that leave checksums to a CPU. If the chosen path cannot be prepared, plan removes it and
// chooses again.
func (s *Stream) plan(ctx context.Context, o *op) error {
	s.resumePaths()
	can, summing := s.can(o)
	o.request = request(&o.work)
	if o.request.Summed = o.work.WantsSums(); o.request.Summed {
		if o.request.Dir == plan.D2D && summing != 0 { // no CPU can sum data that stay on the device
			can &= summing
		}
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
		lost, err := s.ensurePrepared(ctx, o.choice.Path)
		if lost == nil || err != nil {
			return err
		}
		o.givenUp = errors.Join(o.givenUp, s.dropPath(o.choice.Path, lost))
		can = can.Without(o.choice.Path)
	}
}

// can returns the paths that support o's batch, and those of them that compute its checksums.
func (s *Stream) can(o *op) (can, summing plan.Paths) {
	for p := range plan.Paths(s.able.Load()).All {
		ok, sums := s.movers[p].Supports(&o.work)
		if ok {
			can = can.With(p)
		}
		if ok && sums {
			summing = summing.With(p)
		}
	}
	return can, summing
}

// alone returns the paths in can on which a batch starts only after all earlier batches have ended.
// last is the path of the previous batch.
func alone(can plan.Paths, last stream.Path) plan.Paths {
	if isUnordered(last) {
		return can.Without(last)
	}
	return can & unorderedPaths
}

// request returns the planner's request for b.
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

// direction returns the planner's direction of a batch, which is that of its bytes that cross the
// bus.
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

// account removes o from the predicted work ahead before o resolves. It sets c.Predicted and
// reports the duration to the planner. Calls do not overlap.
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
	if !o.planned || o.afterEvent || o.paced {
		return // the batch has waited for other work
	}
	if at := o.handOffAt.Load(); at != 0 && time.Duration(s.finished.Load()-at) > maxUnseen {
		return // completed before it was polled, at an unknown time
	}
	s.planner.Observe(o.choice, o.request, c.Finished.Sub(s.from(o, before)))
}

// from returns the later of o's start and the end of the previous batch.
func (s *Stream) from(o *op, finished time.Duration) time.Time {
	if before := s.epoch.Add(finished); before.After(o.Started) {
		return before
	}
	return o.Started
}
