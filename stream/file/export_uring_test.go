package file

import (
	"context"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/stream"
)

// UseAPI makes path uring use the system calls of a. If plan is not nil, completions fail as it
// demands, under the name "complete". Call it before the first batch.
func (s *Stream) UseAPI(ctx context.Context, a uring.API, plan *fault.Plan) error {
	r, err := uring.Open(uring.Options{Depth: s.opts.Transfers, API: a})
	if err != nil {
		return err
	}
	q, old := newURingQueue(faultyRing{r, plan}), s.queues[stream.PathURing]
	s.queues[stream.PathURing] = q
	for i, reported := range s.staging.queues {
		if reported == old {
			s.staging.queues[i] = q
		}
	}
	for i, lossy := range s.lossy {
		if lossy == old {
			s.lossy[i] = q
		}
	}
	return old.close(ctx)
}

// faultyRing is a ring whose requests can fail or end after half of their bytes.
type faultyRing struct {
	*uring.Ring
	plan *fault.Plan
}

func (r faultyRing) Wait(out []uring.Completion) (int, error) {
	n, err := r.Ring.Wait(out)
	for i := range out[:n] {
		f, hit := r.plan.Hit("complete")
		switch {
		case !hit:
		case f.Action == fault.Partial:
			out[i].N /= 2
		default:
			out[i].N, out[i].Err = 0, f.Err
		}
	}
	return n, err
}
