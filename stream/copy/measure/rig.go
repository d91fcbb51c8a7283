package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// closeTimeout bounds each wait for the remaining work of a failed run.
const closeTimeout = 30 * time.Second

// Memory registers memory before it is copied, for example with NICs.
type Memory interface {
	// Register is called before any stream that uses the memory is opened. An error ends the run.
	Register(regions ...*mem.Region) error
	// Unregister is called after the streams are closed and before the memory is freed.
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// Rig owns memory and other resources of a measurement, and closes them in the right order. The
// zero value is empty.
type Rig struct{ closers []closer }

// closer closes a resource.
type closer struct {
	close func() error
	// last is set if close releases memory. It then runs only after everything opened later is
	// closed.
	last bool
}

// Alloc allocates memory of dev, until the rig is closed.
func (r *Rig) Alloc(dev device.Device, bytes int64) (*mem.Region, error) {
	m, err := dev.Alloc(bytes, device.AllocOptions{})
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of device memory: %w", bytes, err)
	}
	r.frees(dev, m)
	return m, nil
}

// AllocHost allocates pinned memory, until the rig is closed.
func (r *Rig) AllocHost(dev device.Device, bytes int64) (*mem.Region, error) {
	m, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, err)
	}
	r.frees(dev, m)
	return m, nil
}

func (r *Rig) frees(dev device.Device, m *mem.Region) {
	r.OnFree(func() error { return dev.Free(m) })
}

// OnFree registers f to free memory of the caller after everything that was opened later is closed.
func (r *Rig) OnFree(f func() error) { r.closers = append(r.closers, closer{f, true}) }

// Register registers the memory with m, until the rig is closed.
func (r *Rig) Register(m Memory, regions ...*mem.Region) error {
	// After a failed Register a part of the memory may stay registered.
	r.OnClose(func(ctx context.Context) error { return m.Unregister(ctx, regions...) })
	r.closers[len(r.closers)-1].last = true
	if err := m.Register(regions...); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	return nil
}

// OnClose registers f to close a resource. f receives a new context with closeTimeout, because the
// context of the run may have ended.
func (r *Rig) OnClose(f func(context.Context) error) {
	r.closers = append(r.closers, closer{close: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return f(ctx)
	}})
}

// Mark returns a position for CloseTo.
func (r *Rig) Mark() int { return len(r.closers) }

// CloseTo closes everything that was opened after the mark, in reverse order. If a resource does
// not close, older memory is not freed, because it may still be in use. A later call tries the
// remaining resources again.
func (r *Rig) CloseTo(mark int) error {
	var errs []error
	var left []closer
	for i := len(r.closers) - 1; i >= mark; i-- {
		c := r.closers[i]
		if c.last && len(errs) > 0 {
			left = append(left, c)
			continue
		}
		if err := c.close(); err != nil {
			errs, left = append(errs, err), append(left, c)
		}
	}
	slices.Reverse(left)
	r.closers = append(r.closers[:mark], left...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the memory: %w", err)
	}
	return nil
}

// Close closes all resources.
func (r *Rig) Close() error { return r.CloseTo(0) }
