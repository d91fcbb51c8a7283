package bench

import (
	"context"
	"errors"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// rig has the memory between which blocks are copied.
type rig struct {
	measure.Rig
	dev       device.Device // device of the measured streams and queues
	near, far side          // device memory of dev, and the memory at the other side
}

// newRig allocates twice nearBytes of dev's memory, and twice farBytes of pinned memory or of the
// peer's memory. largest is the maximum block size.
func newRig(ctx context.Context, dev, peer device.Device, nearBytes, farBytes, largest int64) (_ *rig, err error) {
	r := &rig{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
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

// ends returns the destination and the source for a direction.
func (r *rig) ends(dir Direction) (dst, src *side) {
	if dir == ToDevice {
		return &r.near, &r.far
	}
	return &r.far, &r.near
}

// register registers the memory with m until the rig is closed.
func (r *rig) register(m measure.Memory) error {
	return r.Register(m, r.near.src, r.near.dst, r.far.src, r.far.dst)
}

// poison overwrites the destinations of plans.
func (r *rig) poison(ctx context.Context, plans ...*plan) error {
	for _, p := range plans {
		dst, _ := r.ends(p.dir)
		if err := dst.poison(ctx, p.dstSpan); err != nil {
			return err
		}
	}
	return nil
}
