package mooncake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

// Regions is the registered memory of a process. Addresses from peers are checked against it. It is
// safe for concurrent use.
type Regions struct {
	table *wire.Table

	mu      sync.Mutex
	buffers []Buffer // registered buffers by address
}

// NewRegions returns Regions without memory. m copies the bytes; it must not be closed while the
// Regions are in use. Nil: host memory only.
func NewRegions(m *wire.Mover) *Regions {
	if m == nil {
		m, _ = wire.NewMover(wire.MoverOptions{}) // the zero options are valid
	}
	return &Regions{table: wire.NewTable(m)}
}

// Address returns the address at which a region is registered: its CPU address, or its device
// address if it has no CPU address.
func Address(r *mem.Region) uint64 {
	if r.Bytes() != nil {
		return uint64(r.CPU())
	}
	return uint64(r.Dev())
}

// Location returns the protocol's name for the kind of memory: "cpu:0", or "cuda:" with the index
// of the device.
func Location(r *mem.Region) string {
	if r.Kind() == mem.KindDevice {
		return fmt.Sprintf("cuda:%d", r.Device())
	}
	return "cpu:0"
}

// Add registers a region at its Address. Peers can read the name. The region must stay valid until
// Remove has returned nil. Add returns ErrInvalid or ErrNotSupported for memory that cannot be
// copied, and ErrExists for memory that overlaps a registered region.
func (m *Regions) Add(name string, r *mem.Region) error {
	if r == nil {
		return fmt.Errorf("register memory: no memory is given: %w", errdefs.ErrInvalid)
	}
	at := Address(r)
	b := Buffer{Name: name, Addr: at, Length: uint64(r.Len())}
	if err := b.validate(); err != nil {
		return fmt.Errorf("register %s: %w", r, err)
	}
	if err := m.table.Add(at, r); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.buffers, at, func(b Buffer, at uint64) int { return cmp.Compare(b.Addr, at) })
	m.buffers = slices.Insert(m.buffers, i, b)
	return nil
}

// Remove unregisters a region and waits until no transfer uses it. If ctx ends first, it returns
// ErrBusy with the cause of ctx: new transfers cannot use the region, but earlier ones may still
// access it, and the caller must retry. It returns ErrNotFound for a region that is not registered.
func (m *Regions) Remove(ctx context.Context, r *mem.Region) error {
	at := Address(r)
	m.mu.Lock()
	m.buffers = slices.DeleteFunc(m.buffers, func(b Buffer) bool { return b.Addr == at })
	m.mu.Unlock()
	err := m.table.Remove(ctx, at)
	switch {
	case errors.Is(err, errdefs.ErrNotFound):
		return fmt.Errorf("withdraw %s: %w", r, err)
	case err != nil:
		return fmt.Errorf("withdraw %s: transfers still use it: %w: %w", r, errdefs.ErrBusy, err)
	}
	return nil
}

// Buffers returns the registered buffers, sorted by address.
func (m *Regions) Buffers() []Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.buffers)
}

// Check returns ErrInvalid if length is 0 or the bytes at addr are not inside one registered
// buffer. It returns ErrLost if the memory is lost.
func (m *Regions) Check(addr, length uint64) error {
	err := m.table.Check(addr, int64(length))
	if length == 0 || errors.Is(err, errdefs.ErrNotFound) {
		return fmt.Errorf("%d bytes at %#x are not registered: %w", length, addr, errdefs.ErrInvalid)
	}
	return err
}

// Send writes length bytes from addr to w. It returns the errors of Check before it writes. When it
// returns, it no longer accesses the memory. See wire.Mover.Send.
func (m *Regions) Send(ctx context.Context, w io.Writer, addr, length uint64) error {
	if err := m.Check(addr, length); err != nil {
		return err
	}
	if err := m.table.Send(ctx, w, addr, int64(length)); err != nil {
		return fmt.Errorf("%d bytes from %#x: %w", length, addr, err)
	}
	return nil
}

// Receive reads length bytes from r into addr. It returns the errors of Check before it reads. When
// it returns, it no longer accesses the memory. If it returns nil, all bytes are visible in the
// memory.
func (m *Regions) Receive(ctx context.Context, r io.Reader, addr, length uint64) error {
	if err := m.Check(addr, length); err != nil {
		return err
	}
	if err := m.table.Receive(ctx, r, addr, int64(length)); err != nil {
		return fmt.Errorf("%d bytes to %#x: %w", length, addr, err)
	}
	return nil
}
