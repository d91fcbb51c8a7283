package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// LeftError is a registration that failed and could not be undone: a NIC has a part of the memory until Unregister takes it back.
type LeftError struct {
	Err  error // why the registration failed
	Left error // why it could not be undone
}

// Error gives both.
func (e *LeftError) Error() string {
	return fmt.Sprintf("%v; that could not be undone: %v", e.Err, e.Left)
}

// Unwrap returns both.
func (e *LeftError) Unwrap() []error { return []error{e.Err, e.Left} }

// Register registers all regions with all NICs as o says, or none of them with any: what a part of it did is undone when a later part
// fails, and where that fails too the error is a *LeftError. Streams that are open may use the memory from now on, as those opened later. The memory
// must live until Unregister has returned nil for it. With another o.Access the same memory may be registered once more: each
// registration serves who needs no more than it grants.
//
// Errors, beside those of rdma.PD: ErrExists for a region that overlaps one with the same o.Access, ErrNotSupported for device
// memory that is neither exported as a dma-buf nor reached through peer memory, with the reason of both.
func Register(nics []*Registry, o rdma.MROptions, regions ...*mem.Region) error {
	staged := make([][]*Memory, len(nics))
	undo := func(err error) error {
		var left []error
		for i, g := range nics {
			for _, m := range staged[i] {
				left = append(left, g.drop(m))
			}
		}
		if left := errors.Join(left...); left != nil {
			return &LeftError{err, left}
		}
		return err
	}
	for i, g := range nics {
		for _, r := range regions {
			m, err := g.stage(r, o)
			if m != nil {
				staged[i] = append(staged[i], m)
			}
			if err != nil {
				return undo(fmt.Errorf("register with NIC %s: %w", g.name, err))
			}
		}
	}
	for i, g := range nics {
		if err := g.publish(staged[i]); err != nil {
			return undo(fmt.Errorf("register with NIC %s: %w", g.name, err))
		}
	}
	return nil
}

// drop undoes stage, and publish if it came to that. What somebody has acquired since stays until Set.Close.
func (g *Registry) drop(m *Memory) error {
	g.retire(m)
	select {
	case <-m.idle:
		return g.deregister(m)
	default:
		return fmt.Errorf("the %s has %d references: %w", m.region, m.references(), errdefs.ErrBusy)
	}
}

// Register is the function of that name for one NIC.
func (g *Registry) Register(o rdma.MROptions, regions ...*mem.Region) error {
	return Register([]*Registry{g}, o, regions...)
}

// stage registers r without making it findable. After an error the memory, if it is not nil, has to be deregistered.
func (g *Registry) stage(r *mem.Region, o rdma.MROptions) (*Memory, error) {
	m, err := g.claim(r, o.Access)
	if err != nil {
		return nil, err
	}
	e := mem.All(r)
	if r.Kind() == mem.KindDevice {
		m.mr, m.method, m.dmabufErr, err = g.registerDevice(e, o)
	} else {
		m.method = MethodHost
		m.mr, err = g.pd.RegMR(e, o)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.stats.Failed++
		return m, fmt.Errorf("register the %s: %w", r, err)
	}
	m.info = m.mr.Info()
	m.registered = true
	s := &g.stats.By[m.method-1]
	s.Live, s.Bytes, s.Total = s.Live+1, s.Bytes+r.Len(), s.Total+1
	leak.Add(leak.RegisteredBytes, r.Len())
	return m, nil
}

// registerDevice registers device memory. why is what was wrong with a dma-buf, where peer memory took its place.
func (g *Registry) registerDevice(e mem.Extent, o rdma.MROptions) (mr rdma.MR, how Method, why, err error) {
	mr, why = g.registerDMABuf(e, o)
	if why == nil {
		return mr, MethodDMABuf, nil, nil
	}
	if !errors.Is(why, errdefs.ErrNotSupported) {
		return nil, 0, nil, why // it can, but not now: peer memory would hide that
	}
	if mr, err = g.pd.RegMR(e, o); err != nil {
		return nil, 0, nil, fmt.Errorf("neither as a dma-buf (%w) nor as peer memory, for which the kernel needs a module such as nvidia_peermem: %w", why, err)
	}
	return mr, MethodPeerMemory, why, nil
}

func (g *Registry) registerDMABuf(e mem.Extent, o rdma.MROptions) (rdma.MR, error) {
	if g.o.Exporter == nil {
		return nil, fmt.Errorf("nothing exports memory of device %d: %w", e.Region.Device(), errdefs.ErrNotSupported)
	}
	fd, off, err := g.o.Exporter.ExportDMABuf(e)
	if err != nil {
		return nil, fmt.Errorf("export dma-buf: %w", err)
	}
	mr, err := g.pd.RegDMABufMR(e, fd, off, o)
	if closeErr := unix.Close(fd); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close dma-buf: %w", closeErr))
	}
	if err != nil && mr != nil {
		return nil, errors.Join(err, closeTwice(mr))
	}
	return mr, err
}

// Unregister makes r, a region of Register, unfindable at once, with whatever rights it was registered, waits until nobody has a
// reference, and deregisters it. When it has returned nil the NIC does not touch the memory any more. Otherwise the memory must
// not be freed, and Unregister has to be called again: ErrBusy, with the context's cause, where references are left when ctx
// ends; ErrNotFound for what is not registered.
func (g *Registry) Unregister(ctx context.Context, r *mem.Region) error {
	all := g.claimsOf(r)
	if len(all) == 0 {
		return fmt.Errorf("unregister the %s from NIC %s: %w", r, g.name, errdefs.ErrNotFound)
	}
	for _, m := range all {
		g.retire(m)
	}
	for _, m := range all {
		if err := g.end(ctx, m); err != nil {
			return fmt.Errorf("unregister the %s from NIC %s: %w", r, g.name, err)
		}
	}
	return nil
}

// end deregisters m, which is retired, once nobody has a reference.
func (g *Registry) end(ctx context.Context, m *Memory) error {
	select {
	case <-m.idle:
	default:
		select {
		case <-m.idle:
		case <-ctx.Done():
			return fmt.Errorf("%d references are left: %w: %w", m.references(), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	return g.deregister(m)
}

// claimed returns the memory of r that is registered.
func (g *Registry) claimsOf(r *mem.Region) []*Memory {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.claims), func(m *Memory) bool { return m.region != r || !m.registered })
}

// Unregister unregisters regions from NICs, as Registry.Unregister. It goes on after a failure, and ErrNotFound is none.
func Unregister(ctx context.Context, nics []*Registry, regions ...*mem.Region) error {
	var errs []error
	for _, g := range nics {
		for _, r := range regions {
			if err := g.Unregister(ctx, r); !errors.Is(err, errdefs.ErrNotFound) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
