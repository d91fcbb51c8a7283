package move

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// Parts is the event of a launch that reports the completion of each of its parts. Only the
// goroutine that completes steps uses it.
type Parts struct {
	describe.Parts
	// To receives the number of completed parts. The goroutine that issues the step sets it.
	To Notifier

	of         *Kernel
	completed  int // completed parts
	table      []byte
	end        device.Event // event of the launch
	began, due time.Time    // start of the first wait, and expected end; zero if unknown
}

// Notifier receives the number of completed page groups of a batch, whose sums are then in the
// batch's Sums.
type Notifier interface{ Notify(groups int) }

var _ device.ExpectedEvent = (*Parts)(nil)

// ask processes completed parts and reports whether all have completed. If driver is set, it also
// queries the event of the launch, which detects a failed kernel.
func (p *Parts) ask(driver bool) (done bool, err error) {
	var over bool
	if driver {
		if over, err = p.end.Done(); err != nil {
			return over, err
		}
	}
	for p.completed < p.N && p.Completed(p.completed) {
		if len(p.Rows) > 0 {
			rows := &p.Rows[p.completed]
			rows.Read(p.table[rows.At:])
		}
		p.completed++
		if p.To != nil {
			p.To.Notify(p.First + p.completed)
		}
	}
	switch {
	case p.completed == p.N:
		return true, nil
	case over:
		return true, fmt.Errorf("the kernel ended, but part %d of %d is not complete: %w", p.completed, p.N, errdefs.ErrBroken)
	}
	return false, nil
}

// Done implements device.Event.
func (p *Parts) Done() (bool, error) { return p.ask(true) }

// Expect implements device.ExpectedEvent.
func (p *Parts) Expect(at time.Time) { p.due = at }

// next returns the time at which the next part is expected. It assumes that all parts take the same
// time.
func (p *Parts) next() time.Time {
	if p.due.IsZero() {
		return p.due
	}
	if p.began.IsZero() {
		p.began = time.Now()
	}
	return p.due.Add(-p.due.Sub(p.began) * time.Duration(p.N-p.completed-1) / time.Duration(p.N))
}

// Wait implements device.Event.
func (p *Parts) Wait(ctx context.Context) error { return await(ctx, p.next, p.ask) }

// Close implements device.Event. It returns p to the free list.
func (p *Parts) Close() {
	p.end.Close()
	clear(p.Rows)
	p.of.freeParts.Put(p)
}
