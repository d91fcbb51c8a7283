package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
	"github.com/kvlane/kvlane/wire"
)

// MooncakeOptions are the options of OpenMooncake.
type MooncakeOptions struct {
	Directory  mooncake.Directory
	Segment    string
	LocalBytes int64
	Lanes      int // number of connections; 0: the protocol's default
	// Device and Copy are like those in transfer.Options. Nil: host memory.
	Device device.Device
	Copy   stream.Stream
}

// Mooncake executes batches with Mooncake's protocol. It uses the largest buffer of a segment.
type Mooncake struct {
	party
	remote *mooncake.Remote
	target mooncake.Buffer
	mover  *wire.Mover
}

// OpenMooncake opens a segment and allocates memory. Close releases both.
func OpenMooncake(ctx context.Context, o MooncakeOptions) (_ *Mooncake, err error) {
	m := &Mooncake{party: party{o: NativeOptions{Device: o.Device, Copy: o.Copy, Bytes: o.LocalBytes}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if _, err := m.alloc(ctx); err != nil {
		return nil, err
	}
	if m.mover, err = wire.NewMover(wire.MoverOptions{Device: o.Device, Copy: o.Copy}); err != nil {
		return nil, err
	}
	registered := mooncake.NewRegions(m.mover)
	if err := registered.Add(mooncake.Location(m.region), m.region); err != nil {
		return nil, err
	}
	if m.remote, err = mooncake.Open(ctx, o.Segment, mooncake.Options{Directory: o.Directory, Memory: registered, Lanes: o.Lanes}); err != nil {
		return nil, err
	}
	buffers := m.remote.Segment().Buffers
	if len(buffers) == 0 {
		return nil, fmt.Errorf("segment %s has no buffer: %w", o.Segment, errdefs.ErrNotFound)
	}
	m.target = slices.MaxFunc(buffers, func(a, b mooncake.Buffer) int { return cmp.Compare(a.Length, b.Length) })
	return m, nil
}

// Protocol implements Driver.
func (m *Mooncake) Protocol() string {
	return fmt.Sprintf("mooncake, tcp version %d", m.remote.Segment().Version)
}

// Target implements Driver.
func (m *Mooncake) Target() string { return m.remote.Segment().Name }

// Local implements Driver.
func (m *Mooncake) Local() Memory { return m.local() }

// Remote implements Driver.
func (m *Mooncake) Remote() int64 { return int64(min(m.target.Length, 1<<62)) }

// Submit implements Driver.
func (m *Mooncake) Submit(ctx context.Context, op Op, blocks []Block) (Pending, error) {
	how := transfer.Read
	if op == Write {
		how = transfer.Write
	}
	tasks := make([]mooncake.Task, len(blocks))
	for i, b := range blocks {
		tasks[i] = mooncake.Task{Op: how, Local: mooncake.Address(m.region) + uint64(b.Local), Remote: m.target.Addr + uint64(b.Remote), Length: uint64(b.Length)}
	}
	b, err := m.remote.Submit(ctx, tasks)
	if err != nil {
		return nil, err // return a nil interface, not a nil *Batch
	}
	return b, nil
}

// Close closes the connections and frees the memory. Unfinished batches fail.
func (m *Mooncake) Close() error {
	if m.remote != nil {
		if err := m.remote.Close(); err != nil {
			return err
		}
	}
	if m.mover != nil {
		if err := m.mover.Close(); err != nil {
			return err
		}
	}
	return m.close()
}
