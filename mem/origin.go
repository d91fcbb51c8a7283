package mem

import (
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// Origin is whose memory a Region names that another process exported. Such memory stays mapped whatever becomes of its exporter, so
// that touching it goes well and means nothing: whoever copies asks the Origin before, and again after. Safe for concurrent use; a
// nil Origin is that of the process's own memory, which is never lost.
type Origin struct {
	device string
	live   func() error
	lost   atomic.Pointer[error]
}

// NewOrigin returns the origin of memory of the device with that UUID, or of the host where it is empty. live returns why the
// memory is no longer exported, or nil: it does not block, and knows of whatever happened before it was called.
func NewOrigin(device string, live func() error) *Origin { return &Origin{device: device, live: live} }

// Device returns the UUID of the device that has the memory; empty for the host's.
func (o *Origin) Device() string { return o.device }

// Lose says that the memory is lost, and why. The first cause stays.
func (o *Origin) Lose(cause error) {
	err := fmt.Errorf("imported memory: %w: %w", errdefs.ErrLost, cause)
	o.lost.CompareAndSwap(nil, &err)
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
