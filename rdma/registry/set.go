package registry

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Exporter exports device memory as dma-bufs. It is safe for concurrent use.
type Exporter interface {
	// ExportDMABuf returns the descriptor of a dma-buf that contains e and the offset in bytes of e
	// in it. The caller closes the descriptor. It returns ErrNotSupported if the device or its
	// driver does not support dma-bufs.
	ExportDMABuf(e mem.Extent) (fd int, off int64, err error)
}

// Options are the options of a Set. The zero value is the default.
type Options struct {
	// Exporter exports device memory as dma-bufs. Optional.
	Exporter Exporter
}

// Set is a trust domain. It opens NICs of a provider, each once, with its own protection domain.
// Queue pairs of other sets cannot access its memory with any key; a server with several tenants
// uses one set for each. Set is safe for concurrent use. If another call is opening or closing a
// NIC, methods return ErrBusy instead of waiting.
type Set struct {
	devices *Devices
	o       Options

	mu      sync.Mutex  // not held during calls of the provider
	nics    []*Registry // in order of opening
	opening []string    // names of NICs being opened
	closing bool        // a Close is in progress
	closed  bool        // Close was called
}

// NIC returns the NIC with the given name. The first call opens it. NIC returns the errors of
// rdma.Provider.Open and rdma.Device.AllocPD, ErrClosed after Close, and ErrBusy while another call
// opens the NIC.
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
	// Append it even if Close was called meanwhile: Close has returned ErrBusy and will be called
	// again.
	s.nics = append(s.nics, g)
	return g, nil
}

// find returns the NIC with the given name, or nil if the caller must open it.
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
		return nil, fmt.Errorf("open NIC %s: another call is opening it: %w", name, errdefs.ErrBusy)
	}
	s.opening = append(s.opening, name)
	return nil, nil
}

// NICs returns the open NICs in the order of opening.
func (s *Set) NICs() []*Registry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nics)
}

// Close deregisters all memory and closes the NICs in reverse order. It returns ErrBusy while a
// stream uses a NIC, memory is in use, or another call opens or closes a NIC. It closes as much as
// possible and permits no new registrations. The caller may retry it. After success, Close returns
// nil.
func (s *Set) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return fmt.Errorf("close NICs: another call is closing them: %w", errdefs.ErrBusy)
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
