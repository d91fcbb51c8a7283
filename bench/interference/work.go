package interference

import (
	"context"
	"sync"
	"sync/atomic"
)

// traffic runs the work in a goroutine.
type traffic struct {
	work  func(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error
	total atomic.Int64 // number of completed bytes

	quit *atomic.Bool
	warm chan struct{} // closed after the first completed part
	// receives the error of the running goroutine, then is closed; nil if none runs
	ended chan error
	// closing is the ended channel of a goroutine whose quit was set.
	closing chan error
}

// set starts or stops the work. It does not wait for the change.
func (t *traffic) set(ctx context.Context, on bool) error {
	switch {
	case on && t.ended == nil:
		if err := t.drain(); err != nil {
			return err
		}
		t.quit, t.warm, t.ended = new(atomic.Bool), make(chan struct{}), make(chan error, 1)
		go func(quit *atomic.Bool, warm chan struct{}, ended chan error) {
			first := sync.OnceFunc(func() { close(warm) })
			ended <- t.work(ctx, quit, func(bytes int64) { t.total.Add(bytes); first() })
			close(ended)
		}(t.quit, t.warm, t.ended)
	case !on && t.ended != nil:
		t.quit.Store(true)
		t.closing, t.ended = t.ended, nil
	}
	return nil
}

// ready reports whether the last call of set has taken effect. It also returns true for failed
// work; stop returns the error.
func (t *traffic) ready() bool {
	if t.ended != nil {
		select {
		case <-t.warm:
			return true
		default:
			return t.failed()
		}
	}
	return t.closing == nil || len(t.closing) > 0
}

// failed reports whether the work ended before it was stopped.
func (t *traffic) failed() bool { return len(t.ended) > 0 }

// drain waits for a stopped goroutine and returns its error.
func (t *traffic) drain() error {
	if t.closing == nil {
		return nil
	}
	err := <-t.closing
	t.closing = nil
	return err
}

// stop stops the work and waits until nothing is in progress.
func (t *traffic) stop() error {
	_ = t.set(context.Background(), false) // only starting can fail
	return t.drain()
}
