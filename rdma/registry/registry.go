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
	name   string
	o      Options
	device *device // which others may have too
	dev    rdma.Device
	events *events
	pd     rdma.PD

	// table is the memory that can be acquired, sorted by rights, space and address. It is replaced, never changed.
	table atomic.Pointer[[]*Memory]

	mu sync.Mutex // guards changes of table, too
	// claims is what occupies addresses, sorted the same way: the table's, what is being registered, and what is retired and
	// not deregistered yet.
	claims []*Memory
	closed bool
	stats  Stats
}

func open(d *Devices, name string, o Options) (*Registry, error) {
	v, err := d.open(name)
	if err != nil {
		return nil, err
	}
	pd, err := v.dev.AllocPD()
	if err != nil {
		return nil, errors.Join(err, closeTwice(v))
	}
	g := &Registry{name: name, o: o, device: v, dev: v.dev, events: v.events, pd: pd}
	g.table.Store(new([]*Memory))
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

// Len returns how many registrations can be acquired.
func (g *Registry) Len() int { return len(*g.table.Load()) }

// Stats returns the figures of the NIC's registrations. Safe for concurrent use.
func (g *Registry) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// compare orders memory by rights, then space, then address.
func (m *Memory) compare(access rdma.Access, space int, addr uint64) int {
	return cmp.Or(cmp.Compare(m.access, access), cmp.Compare(m.space, space), cmp.Compare(m.first, addr))
}

// before counts the elements of t that come before addr in space with these rights, or are there.
func countUpTo(t []*Memory, access rdma.Access, space int, addr uint64) int {
	lo, hi := 0, len(t)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t[mid].compare(access, space, addr) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the memory that allows need and has the n bytes at addr, or the first of them, or nil. Of several it is one
// whose rights no other's are a part of.
func (g *Registry) find(need rdma.Access, space int, addr, n uint64) (m *Memory) {
	// Whatever has more rights is a greater number.
	for t := *g.table.Load(); len(t) > 0; {
		access := t[0].access
		if access&need == need {
			i := countUpTo(t, access, space, addr)
			if i > 0 && t[i-1].access == access && t[i-1].space == space && addr < t[i-1].end() {
				if m = t[i-1]; n <= m.end()-addr {
					return m
				}
			}
		}
		t = t[countUpTo(t, access, math.MaxInt, math.MaxUint64):]
	}
	return m
}

// Acquire returns the memory that holds e, a valid extent, and was registered for need at least, with a reference that keeps it
// registered until Memory.Release. ErrNotFound where the first byte is not registered for that, ErrInvalid where the registered
// memory ends before e does.
func (g *Registry) Acquire(e mem.Extent, need rdma.Access) (*Memory, error) {
	space, addr := address(e)
	m := g.find(need, space, addr, uint64(e.Len))
	if m == nil || !m.acquire() {
		return nil, fmt.Errorf("find %d bytes at %#x of the %s: not registered with NIC %s for %s: %w", e.Len, addr, e.Region, g.name, need, errdefs.ErrNotFound)
	}
	if uint64(e.Len) > m.end()-addr {
		m.Release()
		return nil, fmt.Errorf("find %d bytes at %#x of the %s: NIC %s has %d of them registered: %w", e.Len, addr, e.Region, g.name, m.end()-addr, errdefs.ErrInvalid)
	}
	return m, nil
}

// Covers reports whether Acquire would return memory for e now. It takes no reference.
func (g *Registry) Covers(e mem.Extent, need rdma.Access) bool {
	space, addr := address(e)
	m := g.find(need, space, addr, uint64(e.Len))
	return m != nil && uint64(e.Len) <= m.end()-addr
}

// claim occupies the addresses of r with these rights. ErrExists where another claim with the same overlaps them.
func (g *Registry) claim(r *mem.Region, access rdma.Access) (*Memory, error) {
	if r == nil {
		return nil, fmt.Errorf("there is no region: %w", errdefs.ErrInvalid)
	}
	if r.Kind() == mem.KindFile {
		return nil, fmt.Errorf("no NIC reaches the %s: %w", r, errdefs.ErrInvalid)
	}
	space, first := address(mem.All(r))
	if first > math.MaxUint64-uint64(r.Len()) {
		return nil, fmt.Errorf("the %s ends beyond the address space: %w", r, errdefs.ErrInvalid)
	}
	m := &Memory{region: r, access: access, space: space, first: first, idle: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("NIC %s: %w", g.name, errdefs.ErrClosed)
	}
	i := countUpTo(g.claims, access, space, first)
	for _, o := range g.claims[max(i-1, 0):min(i+1, len(g.claims))] {
		if o.access == access && o.space == space && o.first < m.end() && first < o.end() {
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
	slices.SortFunc(t, func(a, b *Memory) int { return a.compare(b.access, b.space, b.first) })
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
	return g.device.Close()
}
