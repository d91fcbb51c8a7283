package mem

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// Origin is whose memory a Region names that another process exported. Such memory stays mapped whatever becomes of its exporter, so
// that touching it goes well and means nothing: whoever copies holds the Origin meanwhile, and asks it again after. An exporter that wants
// its memory back waits until nobody holds it. Safe for concurrent use; a nil Origin is that of the process's own memory, which is never lost.
type Origin struct {
	device string
	live   func() error
	lost   atomic.Pointer[error]

	mu      sync.Mutex
	holders int
	quiet   chan struct{}
}

// NewOrigin returns the origin of memory of the device with that UUID, or of the host where it is empty. live returns why the
// memory is no longer exported, or nil: it does not block, and knows of whatever happened before it was called.
func NewOrigin(device string, live func() error) *Origin {
	return &Origin{device: device, live: live, quiet: make(chan struct{})}
}

// Device returns the UUID of the device that has the memory; empty for the host's.
func (o *Origin) Device() string { return o.device }

// Lose says that the memory is lost, and why. The first cause stays.
func (o *Origin) Lose(cause error) {
	err := fmt.Errorf("imported memory: %w: %w", errdefs.ErrLost, cause)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost.CompareAndSwap(nil, &err) && o.holders == 0 {
		close(o.quiet)
	}
}

// Hold says that the caller may touch the memory until it calls Release. ErrLost, and then it must not.
func (o *Origin) Hold() error {
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

// Release says that a caller of Hold touches the memory no more, and nothing does that it has begun.
func (o *Origin) Release() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holders--; o.holders == 0 && o.lost.Load() != nil {
		close(o.quiet)
	}
}

// Quiet is closed when the memory is lost and nobody holds it: nobody will touch it any more.
func (o *Origin) Quiet() <-chan struct{} { return o.quiet }

// Holds are the origins that a batch has hold of, each once. One user at a time.
type Holds []*Origin

// Add holds the origin of r too. ErrLost.
func (h *Holds) Add(r *Region) error {
	o := r.Origin()
	if o == nil || slices.Contains(*h, o) {
		return nil
	}
	if err := o.Hold(); err != nil {
		return err
	}
	*h = append(*h, o)
	return nil
}

// Check returns ErrLost if the memory of one of them is lost by now.
func (h Holds) Check() error {
	for _, o := range h {
		if err := o.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Release lets go of all.
func (h *Holds) Release() {
	for _, o := range *h {
		o.Release()
	}
	*h = nil
}

// Lost returns ErrLost with the cause once somebody has found the memory lost. It costs next to nothing and may be late.
func (o *Origin) Lost() error {
	if o == nil {
		return nil
	}
	if err := o.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Check returns ErrLost with the cause if the memory is lost by now. A copy is good if it ended before a Check that finds nothing.
func (o *Origin) Check() error {
	if err := o.Lost(); o == nil || err != nil {
		return err
	}
	if err := o.live(); err != nil {
		o.Lose(err)
	}
	return o.Lost()
}
