package mem

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// Origin is the exporter of memory of another process. Such memory stays mapped when its exporter
// ends; accesses then succeed but read or write unrelated bytes. Therefore a copy calls Acquire
// before it and Check after it. An exporter that reclaims its memory waits until there are no
// holders. An Origin is safe for concurrent use. A nil Origin stands for the process's own memory,
// which is never lost.
type Origin struct {
	live func() error
	lost atomic.Pointer[error]

	mu      sync.Mutex
	holders int
	drained chan struct{}
}

// NewOrigin returns the origin of exported memory. live returns an error if the memory is no longer
// exported. It must not block, and must reflect all events before the call.
func NewOrigin(live func() error) *Origin {
	return &Origin{live: live, drained: make(chan struct{})}
}

// Lose marks the memory as lost. Later calls do not change the cause.
func (o *Origin) Lose(cause error) {
	err := fmt.Errorf("imported memory: %w: %w", errdefs.ErrLost, cause)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost.CompareAndSwap(nil, &err) && o.holders == 0 {
		close(o.drained)
	}
}

// Acquire permits the caller to access the memory until Release. It returns ErrLost if the memory
// is lost.
func (o *Origin) Acquire() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.Lost(); err != nil {
		return err
	}
	o.holders++
	return nil
}

// Release ends the permission of one Acquire. The caller must have no access in progress.
func (o *Origin) Release() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holders--; o.holders == 0 && o.lost.Load() != nil {
		close(o.drained)
	}
}

// Drained returns a channel that is closed when the memory is lost and has no holders, so that it
// is no longer accessed.
func (o *Origin) Drained() <-chan struct{} { return o.drained }

// Holds is a set of acquired origins. It is not safe for concurrent use.
type Holds []*Origin

// Add acquires the origin of r, once. It returns ErrLost if r is lost.
func (h *Holds) Add(r *Region) error {
	o := r.Origin()
	if o == nil || slices.Contains(*h, o) {
		return nil
	}
	if err := o.Acquire(); err != nil {
		return err
	}
	*h = append(*h, o)
	return nil
}

// Check returns ErrLost if the memory of an origin is lost.
func (h Holds) Check() error {
	for _, o := range h {
		if err := o.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all origins.
func (h *Holds) Release() {
	for _, o := range *h {
		o.Release()
	}
	*h = nil
}

// Lost returns ErrLost with the cause if a loss was already detected. It is faster than Check.
func (o *Origin) Lost() error {
	if o == nil {
		return nil
	}
	if err := o.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Check returns ErrLost with the cause if the memory is lost now. A copy is valid if it ended
// before a successful Check.
func (o *Origin) Check() error {
	if err := o.Lost(); o == nil || err != nil {
		return err
	}
	if err := o.live(); err != nil {
		o.Lose(err)
	}
	return o.Lost()
}
