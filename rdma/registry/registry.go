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

// Registry is an open NIC with its registered memory.
type Registry struct {
	name   string
	o      Options
	device *device // shared with other registries
	dev    rdma.Device
	events *events
	pd     rdma.PD

	// table is the list of memory that Acquire searches, sorted by access, address space and
	// address. Changes replace it with a modified copy.
	table atomic.Pointer[[]*Memory]

	mu sync.Mutex // also guards changes of table
	// claims lists all memory that occupies addresses, in the same order: published memory, memory
	// that is being registered, and retired memory that is not deregistered.
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

// closeTwice closes c and retries once after an error; c has no other reference.
func closeTwice(c interface{ Close() error }) error {
	err := c.Close()
	if err != nil {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Name returns the NIC's name.
func (g *Registry) Name() string { return g.name }

// Device returns the NIC. The caller must not close it.
func (g *Registry) Device() rdma.Device { return g.dev }

// PD returns the protection domain of the registered memory.
func (g *Registry) PD() rdma.PD { return g.pd }

// Len returns the number of published registrations.
func (g *Registry) Len() int { return len(*g.table.Load()) }

// Stats returns statistics of the registrations. It is safe for concurrent use.
func (g *Registry) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// compare orders memory by access flags, then address space, then address.
func (m *Memory) compare(access rdma.Access, space int, addr uint64) int {
	return cmp.Or(cmp.Compare(m.access, access), cmp.Compare(m.space, space), cmp.Compare(m.first, addr))
}

// countUpTo returns the number of elements of t that are not after the given position.
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

// find returns published memory that contains the n bytes at addr and permits need. Without such
// memory it returns memory that contains the first byte, or nil. Of several, it returns one with
// minimal access.
func (g *Registry) find(need rdma.Access, space int, addr, n uint64) (m *Memory) {
	// A superset of access flags is a greater number, so the least access comes first.
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

// Acquire returns registered memory that contains e and permits need. It takes a reference that
// keeps the memory registered until Memory.Release. It returns ErrNotFound if the first byte of e
// is not registered with this access, and ErrInvalid if the registered memory ends before e does.
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

// Covers reports whether Acquire would succeed now. It takes no reference.
func (g *Registry) Covers(e mem.Extent, need rdma.Access) bool {
	space, addr := address(e)
	m := g.find(need, space, addr, uint64(e.Len))
	return m != nil && uint64(e.Len) <= m.end()-addr
}

// reserve claims the addresses of r for the given access. It returns ErrExists if they overlap
// another claim with the same access.
func (g *Registry) reserve(r *mem.Region, access rdma.Access) (*Memory, error) {
	if r == nil {
		return nil, fmt.Errorf("no region is given: %w", errdefs.ErrInvalid)
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

// publish adds registered memory to the table. If the registry is closing, it adds nothing and
// returns ErrClosed.
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

// retire removes m from the table. It is idempotent.
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

// deregister deregisters m and drops its claim. m is idle or was never published. It may be retried
// and called concurrently.
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

// close deregisters all memory and closes the NIC. It returns ErrBusy while memory is in use or the
// device has open objects. The caller may retry it.
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
