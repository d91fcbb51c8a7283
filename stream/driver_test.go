package stream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// driver is a stream that resolves a ticket at a given poll.
type driver struct {
	ticket                 *stream.Ticket
	resolveAt              int // number of the poll that resolves; 0: none
	giveUpAt               int // number of the poll that reports that polling is useless; 0: none
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

// TestWaitStopsPolling checks when Wait stops polling: at once if the stream requests it, soon
// after the context ends, and in any case after a limited number of polls. Then it calls Watch.
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
			synctest.Test(t, func(t *testing.T) { // in the bubble, time stands still while a goroutine runs
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
