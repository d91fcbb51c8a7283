package registry

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Exporter gives device memory as dma-bufs. Safe for concurrent use.
type Exporter interface {
	// ExportDMABuf returns the descriptor of a dma-buf that holds e, which the caller closes, and the offset in bytes of e's
	// first byte in it. ErrNotSupported where the device or its driver cannot.
	ExportDMABuf(e mem.Extent) (fd int, off int64, err error)
}

// Options say how memory is registered. The zero value is the default.
type Options struct {
	// Exporter gives dma-bufs of device memory; nil: there are none.
	Exporter Exporter
}

// access is what every region allows. PCIe's relaxed ordering is not asked for: streams rely on writes to the same bytes
// landing in the order of their requests.
const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// Set opens the NICs of a provider, each once. Safe for concurrent use.
type Set struct {
	provider rdma.Provider
	o        Options

	mu     sync.Mutex
	nics   []*Registry // in the order of opening
	closed bool
}

// NewSet returns a set without an open NIC. It does not own the provider, which must outlive it.
func NewSet(p rdma.Provider, o Options) *Set { return &Set{provider: p, o: o} }

// NIC returns the NIC of that name, the same for every caller, and opens it for the first. The errors are those of
// rdma.Provider.Open and rdma.Device.AllocPD; ErrClosed once the set is closing.
func (s *Set) NIC(name string) (*Registry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("open NIC %s: the set of NICs: %w", name, errdefs.ErrClosed)
	}
	for _, g := range s.nics {
		if g.name == name {
			return g, nil
		}
	}
	g, err := open(s.provider, name, s.o)
	if err != nil {
		return nil, fmt.Errorf("open NIC %s: %w", name, err)
	}
	s.nics = append(s.nics, g)
	return g, nil
}

// NICs returns those that are open, in the order of opening.
func (s *Set) NICs() []*Registry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nics)
}

// Close deregisters all memory and closes the NICs, in reverse order. ErrBusy while a stream is open on one of them or
// memory is in flight: what could be given back is, nothing can be registered or acquired any more, and Close may be
// called again. A second Close after success returns nil.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock() // held while NICs are closed, which no other method is of use during
	s.closed = true
	var errs []error
	for i := len(s.nics) - 1; i >= 0; i-- {
		if err := s.nics[i].close(); err != nil {
			errs = append(errs, fmt.Errorf("close NIC %s: %w", s.nics[i].name, err))
			continue
		}
		s.nics = slices.Delete(s.nics, i, i+1)
	}
	return errors.Join(errs...)
}
