package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// ImportOptions are the options of an Importer.
type ImportOptions struct {
	// Allow lists the user IDs whose exports may be imported. Default: the user of this process.
	Allow []int
	// Timeout is the maximum time to wait for an exporter's reply. Default 10 s.
	Timeout time.Duration
}

// Importer maps memory of other processes for one device. All imports of an export share one
// mapping.
type Importer struct {
	dev   device.Device
	users []int
	limit time.Duration

	mu       sync.Mutex
	closed   bool
	mappings map[Identity]*mapping // mappings that were not found to be lost
	open     int                   // number of Imports
}

// NewImporter returns an importer for dev, which must outlive it. Importing device memory requires
// that dev is a device.Sharer. If dev is nil, the importer supports host memory only and maps it as
// pageable memory. NewImporter returns ErrInvalid for invalid options.
func NewImporter(dev device.Device, o ImportOptions) (*Importer, error) {
	if o.Timeout < 0 {
		return nil, fmt.Errorf("make importer: timeout %v is negative: %w", o.Timeout, errdefs.ErrInvalid)
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return &Importer{dev: dev, users: users(o.Allow), limit: o.Timeout, mappings: make(map[Identity]*mapping)}, nil
}

// mapping is a mapped allocation of another process. Several Imports share it.
type mapping struct {
	id    Identity
	refs  int           // Imports and calls that wait for the mapping; guarded by Importer.mu
	ready chan struct{} // closed when the memory is mapped or err is set
	err   error
	// givenUp means that the context of the mapping call ended, so that err does not concern other
	// calls.
	givenUp bool

	link   *link
	origin *mem.Origin
	// mapped is held while the memory is unmapped. Memory of type cuda-ipc is unmapped when it is
	// lost and no longer in use.
	mapped sync.Mutex
	base   *mem.Region
	bytes  []byte // bytes of mapped host memory

	watching sync.WaitGroup
	lost     chan struct{} // closed when the memory is lost
	lostOnce sync.Once
}

// Import is one use of an imported allocation.
type Import struct {
	in     *Importer
	m      *mapping
	desc   Descriptor
	region *mem.Region

	mu     sync.Mutex
	closed bool
}

// Import maps the memory that d describes. It returns ErrNotFound if the exporter no longer exports
// it, ErrLost if the exporter is gone, ErrMismatch if the exporter's data for this identity differs
// from d, fs.ErrPermission if a user is not allowed, and ErrNotSupported if the device cannot map
// the memory.
func (in *Importer) Import(ctx context.Context, d Descriptor) (*Import, error) {
	i, err := in.importOne(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("import %s of process %d: %w", d.Identity, d.PID, err)
	}
	return i, nil
}

func (in *Importer) importOne(ctx context.Context, d Descriptor) (*Import, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	m, err := in.acquire(ctx, &d)
	if err != nil {
		return nil, err
	}
	r, err := m.part(&d)
	if err != nil {
		return nil, errors.Join(err, in.release(m))
	}
	return &Import{in: in, m: m, desc: d, region: r}, nil
}

// acquire returns the mapping of d with a reference. If another call is already mapping the memory,
// it waits for that call. If the other call's context ends, acquire maps the memory itself.
func (in *Importer) acquire(ctx context.Context, d *Descriptor) (*mapping, error) {
	for {
		m, err := in.tryAcquire(ctx, d)
		if err == nil || ctx.Err() != nil || !errors.Is(err, errGaveUp) {
			return m, err
		}
	}
}

// errGaveUp means that the context of the call that was mapping the memory ended.
var errGaveUp = errors.New("another import of it was abandoned")

func (in *Importer) tryAcquire(ctx context.Context, d *Descriptor) (*mapping, error) {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return nil, fmt.Errorf("the importer: %w", errdefs.ErrClosed)
	}
	if m := in.mappings[d.Identity]; m != nil && m.usable() {
		m.refs++
		in.open++
		in.mu.Unlock()
		select {
		case <-m.ready:
			err := m.err
			switch {
			case err == nil:
				err = m.origin.Check()
			case m.givenUp:
				err = errors.Join(errGaveUp, err)
			}
			if err != nil {
				return nil, errors.Join(err, in.release(m))
			}
			return m, nil
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), in.release(m))
		}
	}
	m := &mapping{id: d.Identity, refs: 1, ready: make(chan struct{}), lost: make(chan struct{})}
	in.mappings[d.Identity] = m
	in.open++
	in.mu.Unlock()

	m.err = in.establish(ctx, m, d)
	m.givenUp = m.err != nil && ctx.Err() != nil
	close(m.ready)
	if m.err != nil {
		return nil, errors.Join(m.err, in.release(m))
	}
	return m, nil
}

// usable reports whether further imports may share m: it is being mapped, or is mapped and not
// lost.
func (m *mapping) usable() bool {
	select {
	case <-m.ready:
		return m.err == nil && m.origin.Lost() == nil
	default:
		return true
	}
}

// establish connects to the exporter and maps the memory. On error it undoes both.
func (in *Importer) establish(ctx context.Context, m *mapping, d *Descriptor) error {
	ctx, cancel := context.WithTimeoutCause(ctx, in.limit, fmt.Errorf("the exporter did not answer in %v: %w", in.limit, context.DeadlineExceeded))
	defer cancel()
	l, h, err := dial(ctx, d, in.users)
	if err != nil {
		return err
	}
	err = in.mapIn(m, h)
	if cerr := closeFiles(h); err == nil && cerr != nil {
		err = errors.Join(cerr, in.unmap(m))
	}
	if err != nil {
		return errors.Join(err, l.closeAll())
	}
	m.link, m.origin = l, mem.NewOrigin(l.checkExported)
	m.watching.Go(func() {
		l.watch(func(why error) {
			m.origin.Lose(why)
			m.lostOnce.Do(func() { close(m.lost) })
		})
	})
	m.watching.Go(func() {
		<-m.origin.Drained()
		// Memory of type cuda-ipc must be unmapped before its exporter frees it. Other memory
		// remains readable while it is mapped.
		if d.Type != device.HandleCUDAIPC || in.unmap(m) == nil {
			l.acknowledge()
		}
	})
	if err := m.origin.Check(); err != nil { // the export was withdrawn meanwhile
		return errors.Join(err, in.drop(m))
	}
	return nil
}

func (in *Importer) mapIn(m *mapping, h device.Handle) (err error) {
	if h.Device != "" {
		s, ok := in.dev.(device.Sharer)
		if !ok {
			return fmt.Errorf("the importing device maps no memory of other processes: %w", errdefs.ErrNotSupported)
		}
		m.base, err = s.ImportMemory(h)
		return err
	}
	if m.bytes, err = hostmem.MapShared(h.FD, h.Bytes); err != nil {
		return err
	}
	if in.dev == nil {
		m.base, err = hostmem.Region(m.bytes)
	} else {
		m.base, err = in.dev.RegisterHost(m.bytes)
	}
	if err != nil {
		err = errors.Join(err, hostmem.Free(m.bytes))
		m.bytes = nil
	}
	return err
}

// unmap undoes mapIn. After an error it may be retried.
func (in *Importer) unmap(m *mapping) error {
	m.mapped.Lock()
	defer m.mapped.Unlock()
	if m.base != nil {
		if in.dev != nil {
			if err := in.dev.Free(m.base); err != nil {
				return err
			}
		}
		m.base = nil
	}
	if m.bytes != nil {
		if err := hostmem.Free(m.bytes); err != nil {
			return err
		}
		m.bytes = nil
	}
	return nil
}

// drop unmaps the memory and then closes the connection. Afterwards the exporter may free the
// memory. It returns ErrBusy while the memory is in use.
func (in *Importer) drop(m *mapping) error {
	if m.origin != nil {
		m.origin.Lose(errImportClosed)
		select {
		case <-m.origin.Drained():
		default:
			return fmt.Errorf("copies are under way: %w", errdefs.ErrBusy)
		}
	}
	if err := in.unmap(m); err != nil {
		return err
	}
	if m.link == nil {
		return nil
	}
	err := m.link.closeAll()
	m.watching.Wait()
	m.link = nil
	return err
}

// release drops a reference. Dropping the last one also drops the mapping.
func (in *Importer) release(m *mapping) error {
	in.mu.Lock()
	m.refs--
	in.open--
	last := m.refs == 0
	if last && in.mappings[m.id] == m {
		delete(in.mappings, m.id)
	}
	in.mu.Unlock()
	if !last {
		return nil
	}
	if err := in.drop(m); err != nil {
		in.mu.Lock()
		m.refs++ // the caller may retry; no table contains m any more
		in.open++
		in.mu.Unlock()
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}

// part returns the part of the mapping that d describes.
func (m *mapping) part(d *Descriptor) (*mem.Region, error) {
	m.mapped.Lock()
	defer m.mapped.Unlock()
	b := m.base
	if b == nil {
		return nil, m.origin.Lost()
	}
	spec := mem.RegionSpec{Kind: b.Kind(), Device: b.Device(), Len: d.Length, Origin: m.origin}
	if b.Dev() != 0 {
		spec.Dev = b.Dev() + mem.DevAddr(d.Offset)
	}
	if b.CPU() != 0 {
		spec.CPU, spec.Bytes = b.CPU()+mem.CPUAddr(d.Offset), b.Bytes()[d.Offset:d.Offset+d.Length:d.Offset+d.Length]
	}
	return mem.NewRegion(spec)
}

// Region returns the memory. It is valid until Close. Its Origin reports whether the memory is
// lost.
func (i *Import) Region() *mem.Region { return i.region }

// Descriptor returns the descriptor of the imported memory.
func (i *Import) Descriptor() Descriptor { return i.desc }

// Lost returns a channel that is closed when the memory is lost or its last import is closed.
// mem.Origin has the reason.
func (i *Import) Lost() <-chan struct{} { return i.m.lost }

// Close releases the memory. Closing the last import unmaps it. Close returns ErrBusy while a copy
// uses the memory, and then the memory is lost. After an error it may be retried; after success it
// returns nil.
func (i *Import) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	if err := i.in.release(i.m); err != nil {
		return fmt.Errorf("close import %s: %w", i.desc.Identity, err)
	}
	i.closed = true
	return nil
}

// Close closes the importer. It returns ErrBusy while there are imports; close these and retry.
// After success it returns nil.
func (in *Importer) Close() error {
	in.mu.Lock()
	in.closed = true
	open := in.open
	in.mu.Unlock()
	if open > 0 {
		return fmt.Errorf("close importer: %d imports are open: %w", open, errdefs.ErrBusy)
	}
	return nil
}
