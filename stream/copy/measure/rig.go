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

// closeTimeout bounds each wait for work that a failed run left behind.
const closeTimeout = 30 * time.Second

// Memory is what has to know of the memory that is copied: NICs.
type Memory interface {
	// Register is told of memory before any stream on it is opened. An error ends the run.
	Register(regions ...*mem.Region) error
	// Unregister follows once the streams are closed, before the memory is freed.
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// Rig is memory to measure with, and what has to be closed before it is freed. The zero value is empty.
type Rig struct{ closers []closer }

// closer is something that was opened.
type closer struct {
	close func() error
	// last says that memory becomes free: only when everything opened later is closed.
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

// OnFree frees memory of the caller's, once everything opened later is closed.
func (r *Rig) OnFree(f func() error) { r.closers = append(r.closers, closer{f, true}) }

// Register tells m of the memory, until the rig is closed.
func (r *Rig) Register(m Memory, regions ...*mem.Region) error {
	r.OnClose(func(ctx context.Context) error { return m.Unregister(ctx, regions...) }) // a failure may leave a part of it registered
	r.closers[len(r.closers)-1].last = true
	if err := m.Register(regions...); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	return nil
}

// OnClose closes something that may have to wait. The run's context may have ended by then, so the wait has its own.
func (r *Rig) OnClose(f func(context.Context) error) {
	r.closers = append(r.closers, closer{close: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return f(ctx)
	}})
}

// Mark is a place to close back to.
func (r *Rig) Mark() int { return len(r.closers) }

// CloseTo closes what was opened after the mark, in reverse order. Where something does not close, memory that came before it
// stays: it may still be in use. What is left may be closed again.
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
		return fmt.Errorf("close what was measured with: %w", err)
	}
	return nil
}

// Close closes everything.
func (r *Rig) Close() error { return r.CloseTo(0) }
