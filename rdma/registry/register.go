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

// LeftError is a failed registration that could not be undone. The NIC may still access some of the
// memory until Unregister succeeds.
type LeftError struct {
	Err  error // reason for the failure
	Left error // reason why it could not be undone
}

// Error returns both errors.
func (e *LeftError) Error() string {
	return fmt.Sprintf("%v; undoing that failed: %v", e.Err, e.Left)
}

// Unwrap returns both errors.
func (e *LeftError) Unwrap() []error { return []error{e.Err, e.Left} }

// Register registers all regions with all NICs, or none: after a failure it undoes the earlier
// registrations. If that fails too, the error is a *LeftError. Existing and new streams may use the
// memory immediately. The memory must not be freed until Unregister has returned nil for it. It may
// be registered several times with different o.Access; Acquire chooses a registration that permits
// the access.
//
// Besides the errors of rdma.PD, Register returns ErrExists for a region that overlaps a registered
// one with the same o.Access, and ErrNotSupported with both reasons for device memory that can be
// neither exported as a dma-buf nor reached through peer memory.
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

// drop undoes stage and publish. If the memory has references, it stays registered until Set.Close.
func (g *Registry) drop(m *Memory) error {
	g.retire(m)
	select {
	case <-m.idle:
		return g.deregister(m)
	default:
		return fmt.Errorf("the %s has %d references: %w", m.region, m.references(), errdefs.ErrBusy)
	}
}

// Register calls the function Register for this NIC.
func (g *Registry) Register(o rdma.MROptions, regions ...*mem.Region) error {
	return Register([]*Registry{g}, o, regions...)
}

// stage registers r but does not publish it. After an error, the caller deregisters the returned
// memory if it is not nil.
func (g *Registry) stage(r *mem.Region, o rdma.MROptions) (*Memory, error) {
	m, err := g.reserve(r, o.Access)
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

// registerDevice registers device memory. If it uses peer memory, why is the reason why a dma-buf
// was not used.
func (g *Registry) registerDevice(e mem.Extent, o rdma.MROptions) (mr rdma.MR, how Method, why, err error) {
	mr, why = g.registerDMABuf(e, o)
	if why == nil {
		return mr, MethodDMABuf, nil, nil
	}
	if !errors.Is(why, errdefs.ErrNotSupported) {
		return nil, 0, nil, why // a temporary failure: the fallback to peer memory would hide it
	}
	if mr, err = g.pd.RegMR(e, o); err != nil {
		return nil, 0, nil, fmt.Errorf("as a dma-buf: %w; as peer memory, which needs a kernel module such as nvidia_peermem: %w", why, err)
	}
	return mr, MethodPeerMemory, why, nil
}

func (g *Registry) registerDMABuf(e mem.Extent, o rdma.MROptions) (rdma.MR, error) {
	if g.o.Exporter == nil {
		return nil, fmt.Errorf("no exporter for memory of device %d: %w", e.Region.Device(), errdefs.ErrNotSupported)
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

// Unregister makes the region r unavailable to Acquire, waits until it has no references, and
// deregisters it for all access flags. If it returns nil, the NIC no longer accesses the memory.
// Otherwise the memory must not be freed and the caller must retry. ErrBusy with the cause of ctx
// means that the memory still had references when ctx ended. ErrNotFound means that r is not
// registered.
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

// end waits until the retired memory m has no references and deregisters it.
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

// claimsOf returns all registrations of r.
func (g *Registry) claimsOf(r *mem.Region) []*Memory {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.claims), func(m *Memory) bool { return m.region != r || !m.registered })
}

// Unregister calls Registry.Unregister for all regions and NICs. It continues after a failure and
// ignores ErrNotFound.
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
