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

// HostMemory is registered memory that the CPU reaches. Bytes go between it and sockets without a copy in between. Its zero value is
// empty and ready for use.
type HostMemory struct {
	mu      sync.Mutex
	regions []*hostRegion // by address; none overlap
}

type hostRegion struct {
	Buffer
	region *mem.Region
	users  int           // transfers that touch it
	gone   bool          // withdrawn: nobody new may touch it
	idle   chan struct{} // closed once gone and without users
}

// Add registers a region under a name that peers see. It must stay until Remove has returned nil. Errors: ErrInvalid for a region that the
// CPU does not reach; ErrExists for one that overlaps what is registered.
func (m *HostMemory) Add(name string, r *mem.Region) error {
	if r == nil || r.Bytes() == nil {
		return fmt.Errorf("register %s: the CPU does not reach it: %w", r, errdefs.ErrInvalid)
	}
	b := Buffer{Name: name, Addr: uint64(r.CPU()), Length: uint64(r.Len())}
	if err := b.validate(); err != nil {
		return fmt.Errorf("register %s: %w", r, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, found := m.find(b.Addr)
	if found || at > 0 && m.regions[at-1].Addr+m.regions[at-1].Length > b.Addr || at < len(m.regions) && b.Addr+b.Length > m.regions[at].Addr {
		return fmt.Errorf("register %s: it overlaps what is registered: %w", r, errdefs.ErrExists)
	}
	m.regions = slices.Insert(m.regions, at, &hostRegion{Buffer: b, region: r, idle: make(chan struct{})})
	return nil
}

// Remove withdraws a region, at once, and returns once no transfer touches it any more. If ctx ends before, it is withdrawn and may still
// be touched: ErrBusy, with the context's cause; call Remove again. ErrNotFound for what is not registered.
func (m *HostMemory) Remove(ctx context.Context, r *mem.Region) error {
	m.mu.Lock()
	at := slices.IndexFunc(m.regions, func(h *hostRegion) bool { return h.region == r })
	if at < 0 {
		m.mu.Unlock()
		return fmt.Errorf("withdraw %s: it is not registered: %w", r, errdefs.ErrNotFound)
	}
	h := m.regions[at]
	if !h.gone {
		h.gone = true
		if h.users == 0 {
			close(h.idle)
		}
	}
	m.mu.Unlock()
	select {
	case <-h.idle:
	case <-ctx.Done():
		select {
		case <-h.idle: // who comes too late is told what is so
		default:
			return fmt.Errorf("withdraw %s: transfers still touch it: %w: %w", r, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.regions = slices.DeleteFunc(m.regions, func(other *hostRegion) bool { return other == h })
	return nil
}

// Buffers lists what is registered, by address.
func (m *HostMemory) Buffers() []Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Buffer, 0, len(m.regions))
	for _, h := range m.regions {
		if !h.gone {
			list = append(list, h.Buffer)
		}
	}
	return list
}

// Check implements Memory.
func (m *HostMemory) Check(addr, length uint64) error {
	h, _, err := m.acquire(addr, length)
	if err == nil {
		m.release(h)
	}
	return err
}

// Send implements Memory.
func (m *HostMemory) Send(_ context.Context, w io.Writer, addr, length uint64) error {
	h, e, err := m.acquire(addr, length)
	if err != nil {
		return err
	}
	defer m.release(h)
	if _, err := w.Write(e.Bytes()); err != nil {
		return fmt.Errorf("send %d bytes from %#x: %w", length, addr, err)
	}
	return h.region.Origin().Check() // another process's memory may have been lost meanwhile
}

// Receive implements Memory.
func (m *HostMemory) Receive(_ context.Context, r io.Reader, addr, length uint64) error {
	h, e, err := m.acquire(addr, length)
	if err != nil {
		return err
	}
	defer m.release(h)
	if _, err := io.ReadFull(r, e.Bytes()); err != nil {
		return fmt.Errorf("receive %d bytes to %#x: %w", length, addr, err)
	}
	return h.region.Origin().Check()
}

// acquire returns the memory, which stays registered until release.
func (m *HostMemory) acquire(addr, length uint64) (*hostRegion, mem.Extent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, found := m.find(addr)
	if !found {
		at--
	}
	if at < 0 || length == 0 || m.regions[at].gone || !m.regions[at].holds(addr, length) {
		return nil, mem.Extent{}, fmt.Errorf("%d bytes at %#x are not registered: %w", length, addr, errdefs.ErrInvalid)
	}
	h := m.regions[at]
	e := mem.Extent{Region: h.region, Off: int64(addr - h.Addr), Len: int64(length)}
	if err := e.Validate(); err != nil {
		return nil, mem.Extent{}, err
	}
	h.users++
	return h, e, nil
}

func (m *HostMemory) release(h *hostRegion) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.users--; h.gone && h.users == 0 {
		close(h.idle)
	}
}

// find returns where a buffer that starts at addr is, or would be.
func (m *HostMemory) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(m.regions, addr, func(h *hostRegion, addr uint64) int { return cmp.Compare(h.Addr, addr) })
}
