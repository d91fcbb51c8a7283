package hoststream

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// recorded is work of a stream up to an event. It implements stream.Recorded.
type recorded struct {
	set   *Set
	done  chan struct{} // closed by resolve
	watch sync.Once

	mu    sync.Mutex
	event device.Event // nil after it was closed
	uses  int          // current uses of event
	ended bool
	err   error // failure of the work
}

var _ stream.Recorded = (*recorded)(nil)

// Precede implements stream.Recorded.
func (r *recorded) Precede(ctx context.Context, s stream.EventStream) error {
	if r.poll() {
		return r.Err()
	}
	e := r.use()
	if e == nil {
		return r.Err()
	}
	defer r.release()
	return s.WaitEvent(ctx, e)
}

// Done implements mem.Dependency. The first call starts a goroutine that waits for the event.
func (r *recorded) Done() <-chan struct{} {
	r.watch.Do(func() {
		if r.poll() {
			return
		}
		if err := r.set.begin(); err != nil {
			return // Close will resolve it
		}
		go func() {
			defer r.set.calls.Done()
			e := r.use()
			if e == nil {
				return
			}
			err := e.Wait(r.set.ctx)
			r.release()
			if r.set.ctx.Err() == nil {
				r.resolve(err)
			}
		}()
	})
	return r.done
}

// Err implements mem.Dependency.
func (r *recorded) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// poll reports whether the work has ended. It does not block.
func (r *recorded) poll() bool {
	e := r.use()
	if e == nil {
		return true
	}
	done, err := e.Done()
	r.release()
	if done || err != nil {
		r.resolve(err)
	}
	return done || err != nil
}

// use returns the event, which stays open until release, or nil if the work has ended.
func (r *recorded) use() device.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	r.uses++
	return r.event
}

func (r *recorded) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses--
	r.closeUnused()
}

// resolve marks the work as ended. Only the first call has an effect.
func (r *recorded) resolve(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if r.ended = true; err != nil {
		r.err = fmt.Errorf("recorded work of host stream: %w", err)
	}
	close(r.done)
	r.closeUnused()
}

// closeUnused closes the event when it is no longer needed. The caller holds the mutex.
func (r *recorded) closeUnused() {
	if r.ended && r.uses == 0 && r.event != nil {
		r.event.Close()
		r.event = nil
	}
}
