package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// MooncakeOptions say which segment batches go to.
type MooncakeOptions struct {
	Directory  mooncake.Directory
	Segment    string
	LocalBytes int64
	Lanes      int // connections; 0 is the protocol's default
}

// Mooncake carries batches by Mooncake's protocol, to the largest buffer of a segment.
type Mooncake struct {
	remote *mooncake.Remote
	target mooncake.Buffer
	memory []byte
	local  *mem.Region
}

// OpenMooncake opens a segment and allocates host memory for it. Close gives both back.
func OpenMooncake(ctx context.Context, o MooncakeOptions) (_ *Mooncake, err error) {
	m := new(Mooncake)
	if m.memory, err = hostmem.Alloc(o.LocalBytes); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.local, err = hostmem.Region(m.memory); err != nil {
		return nil, err
	}
	registered := mooncake.NewRegions(nil)
	if err := registered.Add("cpu:0", m.local); err != nil {
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
func (m *Mooncake) Local() Memory { return Host{m.local} }

// Remote implements Driver.
func (m *Mooncake) Remote() int64 { return int64(min(m.target.Length, 1<<62)) }

// Submit implements Driver.
func (m *Mooncake) Submit(ctx context.Context, op Op, blocks []Block) (Pending, error) {
	how := mooncake.Read
	if op == Write {
		how = mooncake.Write
	}
	tasks := make([]mooncake.Task, len(blocks))
	for i, b := range blocks {
		tasks[i] = mooncake.Task{Op: how, Local: uint64(m.local.CPU()) + uint64(b.Local), Remote: m.target.Addr + uint64(b.Remote), Length: uint64(b.Length)}
	}
	b, err := m.remote.Submit(ctx, tasks)
	if err != nil {
		return nil, err // not a nil *Batch in an interface
	}
	return b, nil
}

// Close ends the connections and frees the memory. Batches that are not done fail.
func (m *Mooncake) Close() error {
	var errs []error
	if m.remote != nil {
		errs = append(errs, m.remote.Close())
	}
	if m.memory != nil {
		errs = append(errs, hostmem.Free(m.memory))
		m.memory = nil
	}
	return errors.Join(errs...)
}
