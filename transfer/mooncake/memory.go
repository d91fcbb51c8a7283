package mooncake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

// Memory is registered memory, named by addresses that a peer may have made up. Its methods are safe for concurrent use.
type Memory interface {
	// Buffers lists what is registered.
	Buffers() []Buffer
	// Check reports with ErrInvalid that length bytes from addr, of which there is at least one, do not lie in one buffer, and with
	// ErrLost that the memory there is gone.
	Check(addr, length uint64) error
	// Send writes the length bytes from addr to w, in as few and as large writes as it can. It checks as Check does, and has left the
	// memory when it returns. w has deadlines, and fails once the context's owner gives up.
	Send(ctx context.Context, w io.Writer, addr, length uint64) error
	// Receive reads length bytes from r into the memory from addr, where everybody sees them once it returns nil. It checks as Check does,
	// before it reads, and has left the memory when it returns.
	Receive(ctx context.Context, r io.Reader, addr, length uint64) error
}

// Regions is registered memory: the host's, whose bytes go between it and sockets without a copy in between, and that of the device that
// its Mover stages.
type Regions struct {
	table *wire.Table

	mu  sync.Mutex
	all []*registered // by address
}

type registered struct {
	Buffer
	region *mem.Region
	gone   bool // withdrawn: nobody new may touch it
}

// NewRegions returns memory of which nothing is registered, and whose bytes m moves; it outlives them. Nil: of the host alone.
func NewRegions(m *wire.Mover) *Regions {
	if m == nil {
		m, _ = wire.NewMover(wire.MoverOptions{}) // which nothing is wrong with
	}
	return &Regions{table: wire.NewTable(m)}
}

// Address is by what a registered region is named: the address by which the CPU reaches it, or else its device.
func Address(r *mem.Region) uint64 {
	if r.Bytes() != nil {
		return uint64(r.CPU())
	}
	return uint64(r.Dev())
}

// Location is what memory is called in the protocol: "cpu:0", or "cuda:" and the number of the device that has it.
func Location(r *mem.Region) string {
	if r.Kind() == mem.KindDevice {
		return fmt.Sprintf("cuda:%d", r.Device())
	}
	return "cpu:0"
}

// Add registers a region under a name that peers see, at its Address. It must stay until
// Remove has returned nil. Errors: ErrInvalid and ErrNotSupported for what is no memory or cannot be moved; ErrExists for what overlaps
// what is registered.
func (m *Regions) Add(name string, r *mem.Region) error {
	if r == nil {
		return fmt.Errorf("register memory: there is none: %w", errdefs.ErrInvalid)
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
	i, _ := slices.BinarySearchFunc(m.all, at, func(h *registered, at uint64) int { return cmp.Compare(h.Addr, at) })
	m.all = slices.Insert(m.all, i, &registered{Buffer: b, region: r})
	return nil
}

// Remove withdraws a region, at once, and returns once no transfer touches it any more. If ctx ends before, it is withdrawn and may still
// be touched: ErrBusy, with the context's cause; call Remove again. ErrNotFound for what is not registered.
func (m *Regions) Remove(ctx context.Context, r *mem.Region) error {
	m.mu.Lock()
	i := slices.IndexFunc(m.all, func(h *registered) bool { return h.region == r })
	if i < 0 {
		m.mu.Unlock()
		return fmt.Errorf("withdraw %s: it is not registered: %w", r, errdefs.ErrNotFound)
	}
	h := m.all[i]
	h.gone = true
	m.mu.Unlock()
	if err := m.table.Remove(ctx, h.Addr); err != nil {
		return fmt.Errorf("withdraw %s: transfers still touch it: %w: %w", r, errdefs.ErrBusy, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = slices.DeleteFunc(m.all, func(other *registered) bool { return other == h })
	return nil
}

// Buffers lists what is registered, by address.
func (m *Regions) Buffers() []Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Buffer, 0, len(m.all))
	for _, h := range m.all {
		if !h.gone {
			list = append(list, h.Buffer)
		}
	}
	return list
}

// Check implements Memory.
func (m *Regions) Check(addr, length uint64) error {
	_, err := m.find(addr, length)
	return err
}

// Send implements Memory.
func (m *Regions) Send(ctx context.Context, w io.Writer, addr, length uint64) error {
	r, err := m.find(addr, length)
	if err != nil {
		return err
	}
	if err := m.table.Send(ctx, w, addr, int64(length)); err != nil {
		return fmt.Errorf("%d bytes from %#x: %w", length, addr, err)
	}
	return r.Origin().Check() // another process's memory may have been lost meanwhile
}

// Receive implements Memory.
func (m *Regions) Receive(ctx context.Context, r io.Reader, addr, length uint64) error {
	to, err := m.find(addr, length)
	if err != nil {
		return err
	}
	if err := m.table.Receive(ctx, r, addr, int64(length)); err != nil {
		return fmt.Errorf("%d bytes to %#x: %w", length, addr, err)
	}
	return to.Origin().Check()
}

// find returns the region that has the bytes. What is withdrawn after that, the table finds out.
func (m *Regions) find(addr, length uint64) (*mem.Region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := slices.BinarySearchFunc(m.all, addr, func(h *registered, at uint64) int { return cmp.Compare(h.Addr, at) })
	if !found {
		i--
	}
	if i < 0 || length == 0 || m.all[i].gone || !m.all[i].holds(addr, length) {
		return nil, fmt.Errorf("%d bytes at %#x are not registered: %w", length, addr, errdefs.ErrInvalid)
	}
	return m.all[i].region, m.all[i].region.Origin().Lost()
}
