package stream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// driver is a stream that resolves a ticket at a certain poll.
type driver struct {
	ticket                 *stream.Ticket
	resolveAt              int // the poll that resolves; zero: none
	giveUpAt               int // the poll that says that more are of no use; zero: none
	polls, watches, cancel int
}

func (d *driver) Cancel() { d.cancel++ }
func (d *driver) Watch()  { d.watches++ }

func (d *driver) Poll() bool {
	d.polls++
	if d.polls == d.resolveAt {
		d.ticket.Resolve(stream.Completion{Bytes: 1}, nil)
	}
	return d.polls != d.giveUpAt
}

func driven(d *driver) *stream.Ticket {
	d.ticket = new(stream.Ticket)
	d.ticket.Drive(3, d)
	return d.ticket
}

func TestWaitDrives(t *testing.T) {
	d := &driver{resolveAt: 7}
	if err := driven(d).Wait(t.Context()); err != nil || d.polls != 7 || d.watches != 0 {
		t.Errorf("error %v, %d polls, %d watches", err, d.polls, d.watches)
	}
	if err := d.ticket.Wait(t.Context()); err != nil || d.polls != 7 {
		t.Errorf("error %v, %d polls of a resolved ticket", err, d.polls)
	}
	<-d.ticket.Done()
	d.ticket.Cancel()
	if d.watches != 0 || d.cancel != 1 {
		t.Errorf("%d watches, %d cancels", d.watches, d.cancel)
	}
}

// TestWaitStopsPolling: when the stream says so, at once; when the context ends, soon; and after a bounded number of polls
// in any case. Then the stream is told that somebody waits.
func TestWaitStopsPolling(t *testing.T) {
	cause := errors.New("enough")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for name, tt := range map[string]struct {
		d    driver
		ctx  context.Context
		most int
	}{
		"the stream":  {driver{giveUpAt: 3}, t.Context(), 3},
		"the context": {driver{}, ended, 256},
		"the bound":   {driver{}, t.Context(), 1 << 13},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where clocks stand still while anybody runs
				ticket := driven(&tt.d)
				ctx, cancel := context.WithTimeoutCause(tt.ctx, time.Second, cause)
				defer cancel()
				if err := ticket.Wait(ctx); !errors.Is(err, cause) {
					t.Errorf("wait: %v", err)
				}
				if tt.d.polls == 0 || tt.d.polls > tt.most || tt.d.watches != 1 {
					t.Errorf("%d polls, %d watches", tt.d.polls, tt.d.watches)
				}
			})
		})
	}
}
