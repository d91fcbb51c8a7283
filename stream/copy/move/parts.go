package move

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// Parts is the event of a launch that says of each of its parts when that has landed. It is for one goroutine at a time, that which
// completes.
type Parts struct {
	describe.Parts
	// To is told what has landed. Whoever issues sets it.
	To Teller

	of         *Kernel
	landed     int // parts
	table      []byte
	end        device.Event // of the launch
	began, due time.Time    // when it was first waited for, and when its end is expected; zero: nobody said
}

// Teller is told how many page groups of a batch have landed; their sums are where the batch wants them.
type Teller interface{ Tell(groups int) }

var _ device.ExpectedEvent = (*Parts)(nil)

// ask takes note of parts that have landed, and reports whether all have. The event of the launch tells of a kernel that failed.
func (p *Parts) ask(driver bool) (done bool, err error) {
	var over bool
	if driver {
		if over, err = p.end.Done(); err != nil {
			return over, err
		}
	}
	for p.landed < p.N && p.Landed(p.landed) {
		if len(p.Rows) > 0 {
			rows := &p.Rows[p.landed]
			rows.Read(p.table[rows.At:])
		}
		p.landed++
		if p.To != nil {
			p.To.Tell(p.First + p.landed)
		}
	}
	switch {
	case p.landed == p.N:
		return true, nil
	case over:
		return true, fmt.Errorf("the kernel ended, and part %d of %d has not landed: %w", p.landed, p.N, errdefs.ErrBroken)
	}
	return false, nil
}

// Done implements device.Event.
func (p *Parts) Done() (bool, error) { return p.ask(true) }

// Expect implements device.ExpectedEvent.
func (p *Parts) Expect(at time.Time) { p.due = at }

// next is when the next part is expected: they take their shares of the time.
func (p *Parts) next() time.Time {
	if p.due.IsZero() {
		return p.due
	}
	if p.began.IsZero() {
		p.began = time.Now()
	}
	return p.due.Add(-p.due.Sub(p.began) * time.Duration(p.N-p.landed-1) / time.Duration(p.N))
}

// Wait implements device.Event.
func (p *Parts) Wait(ctx context.Context) error { return await(ctx, p.next, p.ask) }

// Close implements device.Event. The path uses what is left again.
func (p *Parts) Close() {
	p.end.Close()
	clear(p.Rows)
	p.of.spare.Put(p)
}
