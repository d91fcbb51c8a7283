package measure

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Job is a batch and the stream that copies it.
type Job struct {
	By    stream.Stream
	Batch *mem.Batch
}

// Copy submits all jobs before it waits for the first. It returns to with their tickets appended,
// and the time at which the last job was accepted. After a failure accepted jobs have resolved,
// unless ctx has ended.
func Copy(ctx context.Context, to []*stream.Ticket, jobs []Job) (_ []*stream.Ticket, posted time.Time, err error) {
	first := len(to)
	for _, j := range jobs {
		t, err := j.By.Submit(ctx, j.Batch)
		if err != nil {
			return to, time.Now(), errors.Join(err, wait(ctx, to[first:]))
		}
		to = append(to, t)
	}
	posted = time.Now()
	return to, posted, wait(ctx, to[first:])
}

// wait waits for all tickets. It starts with the last, which resolves after all others of its
// stream.
func wait(ctx context.Context, tickets []*stream.Ticket) (err error) {
	for i := len(tickets) - 1; i >= 0; i-- {
		if e := tickets[i].Wait(ctx); err == nil {
			err = e
		}
	}
	return err
}

// Order yields the numbers below n. Each round begins with the next number.
func Order(round, n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield((i + round) % n) {
				return
			}
		}
	}
}
