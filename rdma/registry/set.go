package registry

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
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

// Set is a trust domain: it opens NICs of a provider, each once, with one protection domain. What is registered with one set cannot
// be reached through queue pairs of another, whatever keys a peer knows; so whoever serves several tenants has a set for each. Safe for
// concurrent use. No method waits for another, which may be at the provider for long: what would have to wait is ErrBusy.
type Set struct {
	devices *Devices
	o       Options

	mu      sync.Mutex  // not held while the provider is called
	nics    []*Registry // in the order of opening
	opening []string    // names of those that are being opened
	closing bool        // somebody closes NICs now
	closed  bool        // somebody has begun to
}

// NIC returns the NIC of that name, the same for every caller, and opens it for the first. The errors are those of
// rdma.Provider.Open and rdma.Device.AllocPD; ErrClosed once the set is closing; ErrBusy while the first caller opens it.
func (s *Set) NIC(name string) (*Registry, error) {
	g, err := s.find(name)
	if g != nil || err != nil {
		return g, err
	}
	g, err = open(s.devices, name, s.o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening = slices.DeleteFunc(s.opening, func(o string) bool { return o == name })
	if err != nil {
		return nil, fmt.Errorf("open NIC %s: %w", name, err)
	}
	s.nics = append(s.nics, g) // also where the set is closed since: Close was told that it is busy, and is called again
	return g, nil
}

// find returns the NIC of that name, or nil if the caller is the one to open it.
func (s *Set) find(name string) (*Registry, error) {
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
	if slices.Contains(s.opening, name) {
		return nil, fmt.Errorf("open NIC %s: another is opening it: %w", name, errdefs.ErrBusy)
	}
	s.opening = append(s.opening, name)
	return nil, nil
}

// NICs returns those that are open, in the order of opening.
func (s *Set) NICs() []*Registry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nics)
}

// Close deregisters all memory and closes the NICs, in reverse order. ErrBusy while a stream is open on one of them, memory is
// in flight, or somebody else opens one or is at Close: what could be given back is, nothing can be registered or acquired any
// more, and Close may be called again. A second Close after success returns nil.
func (s *Set) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return fmt.Errorf("close NICs: another closes them: %w", errdefs.ErrBusy)
	}
	s.closed, s.closing = true, true
	all := slices.Clone(s.nics)
	var errs []error
	for _, name := range s.opening {
		errs = append(errs, fmt.Errorf("close NIC %s: it is being opened: %w", name, errdefs.ErrBusy))
	}
	s.mu.Unlock()

	for _, g := range slices.Backward(all) {
		if err := g.close(); err != nil {
			errs = append(errs, fmt.Errorf("close NIC %s: %w", g.name, err))
			continue
		}
		s.mu.Lock()
		s.nics = slices.DeleteFunc(s.nics, func(o *Registry) bool { return o == g })
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.closing = false
	s.mu.Unlock()
	return errors.Join(errs...)
}
