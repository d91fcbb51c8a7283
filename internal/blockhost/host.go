// Package blockhost keeps the blocks of many tenants and identities in one bounded pool of host
// memory, and on disk if it has one. If memory is needed, the blocks of least value are evicted,
// whatever their identity.
//
// Images arrive in pieces, in any order. A block is found when it has all of its bytes and they are
// verified. All methods are safe for concurrent use.
package blockhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Options are the options of a Host.
type Options struct {
	// CapacityBytes bounds the memory of all images. Required.
	CapacityBytes int64
	// TenantBytes bounds the memory of each tenant's images. Zero: CapacityBytes.
	TenantBytes int64
	// Quota returns a smaller bound of a tenant's memory, or zero. It must not block. May be nil.
	Quota func(tenant string) int64
	// Disk keeps blocks below the memory. Nil: memory only.
	Disk *Disk
}

// Usage has the figures of a tenant.
type Usage struct {
	Blocks, Bytes        int64 // complete blocks in memory
	Hits, Misses, Stores int64
	Evictions            int64
	Leased               int64 // blocks leased now; one that is leased twice counts twice
	// DiskReads and DiskWrites are blocks. DiskErrors are failed operations.
	DiskReads, DiskWrites, DiskErrors int64
	Unwritten                         int64 // bytes that wait to be written to disk
	// DiskBlocks and DiskBytes are those of identities in use since the start. DiskEvictions are
	// blocks that were removed from disk for others. DiskFull are writes that failed because the
	// disk is full, and those that replaced older blocks for that reason.
	DiskBlocks, DiskBytes, DiskEvictions, DiskFull int64
}

// Host is a pool of blocks.
type Host struct {
	o Options

	mu      sync.Mutex
	used    int64               // bytes of all memory, including free
	leased  int64               // bytes of leases
	free    map[int64][]*memory // by its length
	tenants map[string]*tenant
	age     float64 // value of the block that was evicted last
	uses    uint64
	closed  bool

	unwritten int64         // bytes of blocks that wait to be written to disk
	writable  chan struct{} // closed and replaced when a block is written to disk
	writers   writers
}

type tenant struct {
	name   string
	usage  Usage
	used   int64 // bytes of memory
	cold   coldest
	spaces map[block.Digest]*Space

	events    diskEvents
	unwritten int64                          // of the host's
	retained  int64                          // bytes of leases on disk
	opening   chan struct{}                  // has an element while an identity is opened
	closing   map[block.Digest]chan struct{} // closed when the tier of an identity is closed
}

// New returns an empty host. It returns ErrInvalid for options out of range.
func New(o Options) (*Host, error) {
	o.TenantBytes = cmp.Or(o.TenantBytes, o.CapacityBytes)
	if o.CapacityBytes <= 0 || o.TenantBytes < 0 {
		return nil, fmt.Errorf("open block host of %d bytes, and %d for each tenant: %w", o.CapacityBytes, o.TenantBytes, errdefs.ErrInvalid)
	}
	if d := o.Disk; d != nil && (d.Open == nil || d.TenantBytes < 0 || d.Identities < 0) {
		return nil, fmt.Errorf("open block host with a disk at %q, %d bytes for each tenant: %w", d.Root, d.TenantBytes, errdefs.ErrInvalid)
	}
	h := &Host{o: o, writable: make(chan struct{}), free: make(map[int64][]*memory), tenants: make(map[string]*tenant)}
	if o.Disk != nil {
		h.startWriters()
	}
	return h, nil
}

// CapacityBytes returns the bound.
func (h *Host) CapacityBytes() int64 { return h.o.CapacityBytes }

// tenantBytes returns the bound of the memory of a tenant.
func (h *Host) tenantBytes(name string) int64 {
	if h.o.Quota != nil {
		if n := h.o.Quota(name); n > 0 {
			return min(n, h.o.TenantBytes)
		}
	}
	return h.o.TenantBytes
}

// maxSpaces returns the bound of the identities of a tenant.
func (h *Host) maxSpaces() int {
	if d := h.o.Disk; d != nil && d.Identities > 0 {
		return min(maxSpaces, d.Identities)
	}
	return maxSpaces
}

// Usage returns the figures of a tenant.
func (h *Host) Usage(name string) Usage {
	h.mu.Lock()
	t := h.tenants[name]
	if t == nil {
		h.mu.Unlock()
		return Usage{}
	}
	u, disks := t.usage, t.disks()
	u.Unwritten = t.unwritten
	h.mu.Unlock()
	u.addDisks(disks)
	return u
}

// Usages returns the figures of all tenants.
func (h *Host) Usages() map[string]Usage {
	h.mu.Lock()
	names := slices.Collect(maps.Keys(h.tenants))
	h.mu.Unlock()
	all := make(map[string]Usage, len(names))
	for _, name := range names {
		all[name] = h.Usage(name)
	}
	return all
}

// disks returns the open tiers. The caller holds mu.
func (t *tenant) disks() (all []tier.Tier) {
	for _, s := range t.spaces {
		if s.disk != nil {
			all = append(all, s.disk)
		}
	}
	return all
}

// Close writes all complete blocks to disk, closes the tiers, and frees all memory. It returns
// ErrBusy while blocks are pinned or written, or if ctx ends before, and may be called again.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	if err := h.closeDisk(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.evict(nil) {
	}
	err := h.freeUnused()
	if h.used > 0 {
		return errors.Join(err, fmt.Errorf("close block host: %d bytes are in use: %w", h.used, errdefs.ErrBusy))
	}
	return err
}
