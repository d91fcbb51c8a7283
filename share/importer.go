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

// ImportOptions say how an Importer imports.
type ImportOptions struct {
	// Allow is the users, by number, whose exports are imported. Default: this process's own.
	Allow []int
	// Timeout bounds how long an exporter may take to answer. Default 10 s.
	Timeout time.Duration
}

// Importer maps memory of other processes for one device. Each export is mapped once, whoever imports it how often.
type Importer struct {
	dev   device.Device
	users []int
	limit time.Duration

	mu     sync.Mutex
	closed bool
	all    map[Identity]*mapping // that are not lost, as far as anybody knows
	open   int                   // Imports
}

// NewImporter returns an importer for dev, which outlives it. Device memory wants a device.Sharer; without a device host memory is
// imported, as pageable memory. ErrInvalid.
func NewImporter(dev device.Device, o ImportOptions) (*Importer, error) {
	if o.Timeout < 0 {
		return nil, fmt.Errorf("make importer: timeout %v is negative: %w", o.Timeout, errdefs.ErrInvalid)
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return &Importer{dev: dev, users: users(o.Allow), limit: o.Timeout, all: make(map[Identity]*mapping)}, nil
}

// mapping is an allocation of another process, mapped.
type mapping struct {
	id    Identity
	refs  int           // Imports, and those who wait for it; with Importer.mu
	ready chan struct{} // closed when it is mapped, or err says why not
	err   error
	// givenUp says that err is the end of its importer's patience.
	givenUp bool

	link   *link
	origin *mem.Origin
	// mapped is held while the memory is unmapped: that of cuda-ipc is when it is lost and nobody holds it any more.
	mapped sync.Mutex
	base   *mem.Region
	bytes  []byte // of host memory

	watching sync.WaitGroup
	gone     chan struct{} // closed, once, when it is lost
	tell     sync.Once
}

// Import is one use of an imported Region.
type Import struct {
	in     *Importer
	m      *mapping
	desc   Descriptor
	region *mem.Region

	mu     sync.Mutex
	closed bool
}

// Import maps what d describes. ErrNotFound if its exporter does not have it, or not any more; ErrLost if there is no exporter;
// ErrMismatch if it is something else there; fs.ErrPermission if a user is not allowed; ErrNotSupported if the device cannot map it.
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

// acquire returns the mapping of d, with a reference. Whoever waited for another that gave up tries himself.
func (in *Importer) acquire(ctx context.Context, d *Descriptor) (*mapping, error) {
	for {
		m, err := in.tryAcquire(ctx, d)
		if err == nil || ctx.Err() != nil || !errors.Is(err, errGaveUp) {
			return m, err
		}
	}
}

// errGaveUp is why there is no mapping to share: whoever was making it stopped.
var errGaveUp = errors.New("another import of it was given up")

func (in *Importer) tryAcquire(ctx context.Context, d *Descriptor) (*mapping, error) {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return nil, fmt.Errorf("the importer: %w", errdefs.ErrClosed)
	}
	if m := in.all[d.Identity]; m != nil && m.usable() {
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
	m := &mapping{id: d.Identity, refs: 1, ready: make(chan struct{}), gone: make(chan struct{})}
	in.all[d.Identity] = m
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

// usable reports whether another import may share m: it is being made, or stands.
func (m *mapping) usable() bool {
	select {
	case <-m.ready:
		return m.err == nil && m.origin.Lost() == nil
	default:
		return true
	}
}

// establish connects and maps. What it did is undone if it fails.
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
	m.link, m.origin = l, mem.NewOrigin(d.Device, l.live)
	m.watching.Go(func() {
		l.watch(func(why error) {
			m.origin.Lose(why)
			m.tell.Do(func() { close(m.gone) })
		})
	})
	m.watching.Go(func() {
		<-m.origin.Quiet()
		// What CUDA's exporter frees has to be unmapped; the others' memory stays while it is mapped, and its Regions' bytes can be looked at.
		if d.Type != device.HandleCUDAIPC || in.unmap(m) == nil {
			l.acknowledge()
		}
	})
	if err := m.origin.Check(); err != nil { // it was withdrawn while it was mapped
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

// unmap undoes mapIn. After an error it may be called again.
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

// drop unmaps, and then lets go of the exporter, which may free the memory when that is so. ErrBusy while somebody holds the memory.
func (in *Importer) drop(m *mapping) error {
	if m.origin != nil {
		m.origin.Lose(errImportClosed)
		select {
		case <-m.origin.Quiet():
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

// release gives a reference back, and drops the mapping with the last.
func (in *Importer) release(m *mapping) error {
	in.mu.Lock()
	m.refs--
	in.open--
	last := m.refs == 0
	if last && in.all[m.id] == m {
		delete(in.all, m.id)
	}
	in.mu.Unlock()
	if !last {
		return nil
	}
	if err := in.drop(m); err != nil {
		in.mu.Lock()
		m.refs++ // for another try, by nobody else: it is in no table
		in.open++
		in.mu.Unlock()
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}

// part returns the region of d in the mapping.
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

// Region returns the memory, until Close. Its Origin says whether it is lost.
func (i *Import) Region() *mem.Region { return i.region }

// Descriptor returns what was imported.
func (i *Import) Descriptor() Descriptor { return i.desc }

// Lost is closed when the memory is lost, or the last import of it closed: mem.Origin says why.
func (i *Import) Lost() <-chan struct{} { return i.m.gone }

// Close gives the memory back: with the last import of it, it is unmapped. ErrBusy while a copy
// from or to it is under way; then it is lost. A second Close returns nil; after an error it may be
// called again.
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

// Close ends the importer. ErrBusy if there are imports: they stay, have to be closed, and Close called again. A second Close after success
// returns nil.
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
