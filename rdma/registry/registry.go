package registry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Registry is an open NIC and the memory that it may reach.
type Registry struct {
	name string
	o    Options
	dev  rdma.Device
	pd   rdma.PD

	events events

	// table is the memory that can be acquired, sorted by space and address. It is replaced, never changed.
	table atomic.Pointer[[]*Memory]

	mu sync.Mutex // guards changes of table, too
	// claims is what occupies addresses, sorted the same way: the table's, what is being registered, and what is retired and
	// not deregistered yet.
	claims []*Memory
	closed bool
	stats  Stats
}

func open(p rdma.Provider, name string, o Options) (*Registry, error) {
	dev, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, errors.Join(err, closeTwice(dev))
	}
	g := &Registry{name: name, o: o, dev: dev, pd: pd}
	g.table.Store(new([]*Memory))
	g.events.start(dev)
	return g, nil
}

// closeTwice closes what nobody else knows of. As nobody could try again later, it does that itself.
func closeTwice(c interface{ Close() error }) error {
	err := c.Close()
	if err != nil {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Name returns the NIC's name.
func (g *Registry) Name() string { return g.name }

// Device returns the NIC. Its users make and close what they need of it, but for the device itself.
func (g *Registry) Device() rdma.Device { return g.dev }

// PD returns the protection domain of all registered memory.
func (g *Registry) PD() rdma.PD { return g.pd }

// Len returns how many regions can be acquired.
func (g *Registry) Len() int { return len(*g.table.Load()) }

// Stats returns the figures of the NIC's registrations. Safe for concurrent use.
func (g *Registry) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// before counts the elements of t that start at or before addr in space.
func before(t []*Memory, space int, addr uint64) int {
	lo, hi := 0, len(t)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if m := t[mid]; m.space < space || m.space == space && m.first <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the memory that has the byte at addr, or nil.
func (g *Registry) find(space int, addr uint64) *Memory {
	t := *g.table.Load()
	i := before(t, space, addr)
	if i == 0 || t[i-1].space != space || addr >= t[i-1].end() {
		return nil
	}
	return t[i-1]
}

// Acquire returns the memory that holds e, a valid extent, with a reference that keeps it registered until Memory.Release.
// ErrNotFound where the first byte is not registered, ErrInvalid where the registered memory ends before e does.
func (g *Registry) Acquire(e mem.Extent) (*Memory, error) {
	space, addr := address(e)
	m := g.find(space, addr)
	if m == nil || !m.acquire() {
		return nil, fmt.Errorf("find %d bytes at %#x of the %s: not registered with NIC %s: %w", e.Len, addr, e.Region, g.name, errdefs.ErrNotFound)
	}
	if uint64(e.Len) > m.end()-addr {
		m.Release()
		return nil, fmt.Errorf("find %d bytes at %#x of the %s: NIC %s has %d of them registered: %w", e.Len, addr, e.Region, g.name, m.end()-addr, errdefs.ErrInvalid)
	}
	return m, nil
}

// Covers reports whether Acquire would return memory for e now. It takes no reference.
func (g *Registry) Covers(e mem.Extent) bool {
	space, addr := address(e)
	m := g.find(space, addr)
	return m != nil && uint64(e.Len) <= m.end()-addr
}

// Resolve returns the extent of n bytes from addr, which may lie anywhere inside registered memory: a CPU address where
// device is mem.NoDevice, else an address of that device. It takes no reference. Errors as Acquire; ErrInvalid too for a
// negative n.
func (g *Registry) Resolve(device int, addr mem.Addr, n int64) (mem.Extent, error) {
	m := g.find(device, uint64(addr))
	if m == nil {
		return mem.Extent{}, fmt.Errorf("resolve address %#x of device %d: not registered with NIC %s: %w", uint64(addr), device, g.name, errdefs.ErrNotFound)
	}
	e := mem.Extent{Region: m.region, Off: int64(uint64(addr) - m.first), Len: n}
	return e, e.Validate()
}

// claim occupies the addresses of r. ErrExists where another claim overlaps them.
func (g *Registry) claim(r *mem.Region) (*Memory, error) {
	if r == nil {
		return nil, fmt.Errorf("there is no region: %w", errdefs.ErrInvalid)
	}
	space, first := address(mem.All(r))
	if first > math.MaxUint64-uint64(r.Len()) {
		return nil, fmt.Errorf("the %s ends beyond the address space: %w", r, errdefs.ErrInvalid)
	}
	m := &Memory{region: r, space: space, first: first, idle: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("NIC %s: %w", g.name, errdefs.ErrClosed)
	}
	i := before(g.claims, space, first)
	for _, o := range g.claims[max(i-1, 0):min(i+1, len(g.claims))] {
		if o.space == space && o.first < m.end() && first < o.end() {
			return nil, fmt.Errorf("the %s overlaps the %s, which is registered: %w", r, o.region, errdefs.ErrExists)
		}
	}
	g.claims = slices.Insert(g.claims, i, m)
	return m, nil
}

// publish makes what was claimed and registered findable. ErrClosed, and then nothing is, where the registry closes.
func (g *Registry) publish(ms []*Memory) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("NIC %s: %w", g.name, errdefs.ErrClosed)
	}
	t := slices.Concat(*g.table.Load(), ms)
	slices.SortFunc(t, func(a, b *Memory) int { return cmp.Or(cmp.Compare(a.space, b.space), cmp.Compare(a.first, b.first)) })
	g.table.Store(&t)
	return nil
}

// retire makes m unfindable, and is idempotent.
func (g *Registry) retire(m *Memory) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.retired {
		return
	}
	m.retired = true
	t := slices.DeleteFunc(slices.Clone(*g.table.Load()), func(o *Memory) bool { return o == m })
	g.table.Store(&t)
	m.retire()
}

// deregister ends the registration of m, which is idle or was never published, and gives up the claim. It may be called
// again when it failed, and from several goroutines.
func (g *Registry) deregister(m *Memory) error {
	if m.mr != nil {
		if err := m.mr.Close(); err != nil {
			return fmt.Errorf("deregister the %s: %w", m.region, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.registered {
		m.registered = false
		s := &g.stats.By[m.method-1]
		s.Live, s.Bytes = s.Live-1, s.Bytes-m.region.Len()
		leak.Add(leak.RegisteredBytes, -m.region.Len())
	}
	g.claims = slices.DeleteFunc(g.claims, func(o *Memory) bool { return o == m })
	return nil
}

// close gives everything back. ErrBusy while something is in flight or made of the device; it may be called again.
func (g *Registry) close() error {
	g.mu.Lock()
	g.closed = true
	all := slices.Clone(g.claims)
	g.mu.Unlock()
	var errs []error
	for _, m := range all {
		errs = append(errs, g.drop(m))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := g.pd.Close(); err != nil {
		return err
	}
	return errors.Join(g.events.stop(), g.dev.Close())
}
