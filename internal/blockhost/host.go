// Package blockhost keeps the blocks of many tenants and identities in one bounded pool of host
// memory. If memory is needed, the blocks of least value are evicted, whatever their identity.
//
// Images arrive in pieces, in any order. A block is found when it has all of its bytes and they are
// verified. All methods are safe for concurrent use.
package blockhost

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Options are the options of a Host.
type Options struct {
	// CapacityBytes bounds the memory of all images. Required.
	CapacityBytes int64
	// TenantBytes bounds the memory of each tenant's images. Zero: CapacityBytes.
	TenantBytes int64
}

// Usage has the figures of a tenant.
type Usage struct {
	Blocks, Bytes        int64 // complete blocks
	Hits, Misses, Stores int64
	Evictions            int64
	Leased               int64 // blocks leased now; one that is leased twice counts twice
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
}

type tenant struct {
	usage  Usage
	used   int64 // bytes of memory
	cold   coldest
	spaces map[block.Digest]*Space
}

// New returns an empty host. It returns ErrInvalid for options out of range.
func New(o Options) (*Host, error) {
	o.TenantBytes = cmp.Or(o.TenantBytes, o.CapacityBytes)
	if o.CapacityBytes <= 0 || o.TenantBytes < 0 {
		return nil, fmt.Errorf("open block host of %d bytes, and %d for each tenant: %w", o.CapacityBytes, o.TenantBytes, errdefs.ErrInvalid)
	}
	return &Host{o: o, free: make(map[int64][]*memory), tenants: make(map[string]*tenant)}, nil
}

// CapacityBytes returns the bound.
func (h *Host) CapacityBytes() int64 { return h.o.CapacityBytes }

// Usage returns the figures of a tenant.
func (h *Host) Usage(name string) Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenants[name]; t != nil {
		return t.usage
	}
	return Usage{}
}

// Close frees all memory. It returns ErrBusy while blocks are pinned or written, and may be called
// again.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for h.evict(nil) {
	}
	err := h.freeUnused()
	if h.used > 0 {
		return errors.Join(err, fmt.Errorf("close block host: %d bytes are in use: %w", h.used, errdefs.ErrBusy))
	}
	return err
}
