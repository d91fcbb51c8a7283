package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// closeTimeout bounds the wait for work that a failed run left behind.
const closeTimeout = 30 * time.Second

// rig is the memory that blocks are copied between, and what has to be closed before it is freed.
type rig struct {
	dev       device.Device // streams and queues that are measured are its
	near, far side          // device memory of dev; the other end
	closers   []func() error
}

// newRig allocates nearBytes of dev's memory twice, and farBytes of pinned memory or, where there is one, of a peer's.
// Blocks have at most largest bytes.
func newRig(ctx context.Context, dev, peer device.Device, nearBytes, farBytes, largest int64) (_ *rig, err error) {
	r := &rig{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if peer == nil {
		r.far, err = r.hostSide(farBytes)
	} else {
		r.far, err = r.deviceSide(ctx, peer, farBytes, largest, farTag)
	}
	if err != nil {
		return nil, err
	}
	r.near, err = r.deviceSide(ctx, dev, nearBytes, largest, nearTag)
	return r, err
}

// ends returns where blocks go and where they come from.
func (r *rig) ends(dir Direction) (dst, src *side) {
	if dir == ToDevice {
		return &r.near, &r.far
	}
	return &r.far, &r.near
}

func (r *rig) allocHost(dev device.Device, bytes int64) (*mem.Region, error) {
	m, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, err)
	}
	r.frees(dev, m)
	return m, nil
}

func (r *rig) frees(dev device.Device, m *mem.Region) {
	r.closers = append(r.closers, func() error { return dev.Free(m) })
}

// onClose closes something that may have to wait. The run's context may have ended by then, so the wait has its own.
func (r *rig) onClose(f func(context.Context) error) {
	r.closers = append(r.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return f(ctx)
	})
}

// register tells m of the memory, until the rig is closed.
func (r *rig) register(m Memory) error {
	regions := []*mem.Region{r.near.src, r.near.dst, r.far.src, r.far.dst}
	if err := m.Register(regions...); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	r.onClose(func(ctx context.Context) error { return m.Unregister(ctx, regions...) })
	return nil
}

// mark is a place to close back to.
func (r *rig) mark() int { return len(r.closers) }

// closeTo closes what was opened after the mark, in reverse order. It stops at the first failure: a queue or stream that
// does not close may still use the memory that comes after it.
func (r *rig) closeTo(mark int) error {
	for len(r.closers) > mark {
		last := len(r.closers) - 1
		if err := r.closers[last](); err != nil {
			return fmt.Errorf("close benchmark: %w", err)
		}
		r.closers = r.closers[:last]
	}
	return nil
}

func (r *rig) close() error { return r.closeTo(0) }

// poison overwrites what the plans may write.
func (r *rig) poison(ctx context.Context, plans ...*plan) error {
	for _, p := range plans {
		dst, _ := r.ends(p.dir)
		if err := dst.poison(ctx, p.dstSpan()); err != nil {
			return err
		}
	}
	return nil
}
