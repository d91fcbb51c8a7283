package soft

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// patience is a context that ends a while after somebody first waits for it, or with the one that it is made of. Nearly no
// transfer has to wait, and a timer for each would cost more than all the rest.
type patience struct {
	context.Context
	limit time.Duration
	begun atomic.Pointer[wait]
}

// wait is a context with a timer.
type wait struct {
	context.Context
	stop context.CancelFunc
}

var _ context.Context = (*patience)(nil)

// Done implements context.Context.
func (p *patience) Done() <-chan struct{} {
	if w := p.begun.Load(); w != nil {
		return w.Done()
	}
	w := new(wait)
	w.Context, w.stop = context.WithTimeoutCause(p.Context, p.limit, fmt.Errorf("there was no room for %v: %w", p.limit, errdefs.ErrBusy))
	if !p.begun.CompareAndSwap(nil, w) {
		w.stop()
	}
	return p.begun.Load().Done()
}

func (p *patience) now() context.Context {
	if w := p.begun.Load(); w != nil {
		return w
	}
	return p.Context
}

// Err implements context.Context.
func (p *patience) Err() error { return p.now().Err() }

// Value implements context.Context. It is how context.Cause finds the cause.
func (p *patience) Value(key any) any { return p.now().Value(key) }

// Deadline implements context.Context.
func (p *patience) Deadline() (time.Time, bool) { return p.now().Deadline() }

// end stops the timer, if there is one. Nobody waits for the context any more.
func (p *patience) end() {
	if w := p.begun.Swap(nil); w != nil {
		w.stop()
	}
}
