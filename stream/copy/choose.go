package copy

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// The reasons that completions carry, beside those of package plan.
const (
	ReasonForced     = "the path was forced by an option"
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
	v := &o.stats
	forced := s.opts.Path
	switch {
	case v.runs == 0:
		o.path, o.reason = stream.PathNone, ReasonEmpty
		return nil
	case forced != stream.PathNone && s.takes(forced, o):
		o.path, o.reason = forced, ReasonForced
	case forced != stream.PathNone:
		o.path, o.reason = stream.PathCopyEngine, ReasonUnfit
	default:
		if err := s.plan(ctx, o); err != nil {
			return err
		}
	}
	if k, ok := s.movers[o.path].(summer); ok {
		o.summed = k.sums(o)
	}
	return nil
}

// summer is a mover that can fill mem.Paged.Sums.
type summer interface {
	mover
	// sums reports whether it fills the sums that o's batch asks for.
	sums(o *op) bool
}

// plan has the planner choose, among the paths that take the batch. Where it asks for sums, the planner hears which of them
// leave those to a CPU. A path that cannot get what it needs is lost, and the batch tells why.
func (s *Stream) plan(ctx context.Context, o *op) error {
	s.readmit()
	can, unsummed := s.can(o)
	o.request = o.stats.request(o.at.batch.Paged != nil)
	o.request.Summed, o.request.Unsummed = o.sumsWanted(), unsummed
	if o.request.Ahead = time.Duration(s.ahead.Load()); o.request.Ahead > 0 {
		o.request.Alone = alone(can, stream.Path(s.last.Load()))
	}
	s.starts(&o.request, can)
	for unprepared := false; ; unprepared = true {
		o.choice = s.planner.Choose(o.request, can)
		o.path, o.reason, o.planned = o.choice.Path, o.choice.Reason, true
		if unprepared {
			o.reason = ReasonUnprepared
		}
		lost, err := s.ready(ctx, o.path)
		if lost == nil || err != nil {
			return err
		}
		o.lost = errors.Join(o.lost, s.lose(o.path, lost))
		can = can.Without(o.path)
	}
}

// can returns the paths that could carry o's batch, and which of them would not make the sums that it asks for.
func (s *Stream) can(o *op) (can, unsummed plan.Paths) {
	wants := o.sumsWanted()
	for p := range plan.Paths(s.able.Load()).All {
		if !s.takes(p, o) {
			continue
		}
		can = can.With(p)
		if wants {
			if k, ok := s.movers[p].(summer); !ok || !k.sums(o) {
				unsummed = unsummed.With(p)
			}
		}
	}
	return can, unsummed
}

// picky is a mover that does not reach all of the device's memory.
type picky interface {
	mover
	// reaches reports whether it reaches all that a batch names.
	reaches(b *mem.Batch) bool
}

// takes reports whether a path can carry o's batch.
func (s *Stream) takes(p stream.Path, o *op) bool {
	m := s.movers[p]
	if !m.takes(&o.stats) {
		return false
	}
	k, ok := m.(picky)
	return !ok || k.reaches(o.at.batch)
}

// alone returns those of can by which a batch waits until all ahead of it has ended, which last took that path.
func alone(can plan.Paths, last stream.Path) plan.Paths {
	if isApart(last) {
		return can.Without(last)
	}
	return can & apartPaths
}

// starter is a mover whose kernel comes and goes.
type starter interface {
	mover
	// streak counts a batch that the path could take, and returns how many came before it, one soon after another.
	streak(now time.Duration) int
	// resting reports whether a batch that comes at now would have to start the kernel.
	resting(now time.Duration) bool
}

// starts tells the planner of kernels that would have to be started, and how many batches may share what that takes.
func (s *Stream) starts(r *plan.Request, can plan.Paths) {
	for p := range can.All {
		if k, ok := s.movers[p].(starter); ok {
			now := s.opts.Clock.Since(s.epoch)
			r.Streak = k.streak(now)
			if k.resting(now) {
				r.Resting = r.Resting.With(p)
			}
		}
	}
}

// sumsWanted reports whether the batch asks for sums.
func (o *op) sumsWanted() bool { return o.at.batch.Paged != nil && len(o.at.batch.Paged.Sums) > 0 }

// request is what the planner is asked.
func (v *survey) request(paged bool) plan.Request {
	r := plan.Request{Dir: v.direction(), Pieces: v.copies, Runs: v.runs, Bytes: v.bytes}
	if paged {
		r.Form = plan.Paged
	}
	switch r.Dir {
	case plan.H2D:
		r.HostRuns = v.srcRuns
	case plan.D2H:
		r.HostRuns = v.dstRuns
	case plan.D2D, plan.Peer:
	}
	return r
}

// direction is the batch's direction as the planner knows it. What moves both ways, or partly within one memory, goes by
// the part that crosses the bus.
func (v *survey) direction() plan.Direction {
	switch {
	case v.ways&wayH2D != 0:
		return plan.H2D
	case v.ways&wayD2H != 0:
		return plan.D2H
	case v.ways&wayPeer != 0:
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
	c.Summed = o.summed
	if !o.planned || o.held || o.choice.Pace > 0 && o.steps > 1 {
		return // it waited for something else than the path
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
