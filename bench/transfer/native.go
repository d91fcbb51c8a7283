package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
)

// closeTimeout is the maximum wait for transfers in progress when an engine is closed.
const closeTimeout = 30 * time.Second

// NativeOptions are the options for the memory and the paths of a transfer engine.
type NativeOptions struct {
	// Device has the memory, and Copy copies it. Nil: host memory. The caller closes both.
	Device device.Device
	Copy   stream.Stream
	Bytes  int64
	// Store is the directory of segments. Nil: segments are opened by the address of their engine.
	Store metadata.Store
	// NICs are the NICs for RDMA. Optional.
	NICs *rail.NICs
	// NICsOptional is like that in transfer.Options.
	NICsOptional bool
	Lanes        int // number of connections; 0: the engine's default
}

// memoryName is the name of the buffer in the segment.
const memoryName = "memory"

// party is a transfer engine with its memory. The initiator and the target both have one.
type party struct {
	o      NativeOptions
	host   *share.HostMemory
	bounce *mem.Region
	region *mem.Region
	engine *transfer.Engine

	bounceMu sync.Mutex // guards bounce
}

// alloc allocates the memory. It returns the source for exporting it to processes of this host.
func (p *party) alloc(ctx context.Context) (source share.Source, err error) {
	if p.o.Device == nil {
		if p.host, err = share.AllocHost(nil, p.o.Bytes); err != nil {
			return nil, err
		}
		p.region = p.host.Region()
		return p.host, nil
	}
	if sharer, ok := p.o.Device.(device.Sharer); ok {
		if by, err := share.NewAllocator(sharer, share.Probe(ctx, sharer, share.ProbeOptions{})); err == nil {
			p.region, err = by.Alloc(p.o.Bytes)
			return sharer, err
		} else if !errors.Is(err, errdefs.ErrNotSupported) {
			return nil, err
		}
	}
	p.region, err = p.o.Device.Alloc(p.o.Bytes, device.AllocOptions{})
	return nil, err // memory without a source is reached by TCP only
}

func (p *party) open(o transfer.Options) (err error) {
	o.Store, o.Lanes, o.Device, o.Copy = p.o.Store, p.o.Lanes, p.o.Device, p.o.Copy
	o.NICs, o.NICsOptional = p.o.NICs, p.o.NICsOptional
	p.engine, err = transfer.Open(o)
	return err
}

// Engine returns the engine.
func (p *party) Engine() *transfer.Engine { return p.engine }

// close closes the engine and frees the memory. It does not free memory that the engine may still
// use.
func (p *party) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if p.engine != nil {
		if err := p.engine.Close(ctx); err != nil {
			return err
		}
	}
	var errs []error
	if p.host != nil {
		errs = append(errs, p.host.Close())
	} else if p.region != nil {
		errs = append(errs, p.o.Device.Free(p.region))
	}
	if p.bounce != nil {
		errs = append(errs, p.o.Device.Free(p.bounce))
	}
	return errors.Join(errs...)
}

// TargetOptions are the options of a target.
type TargetOptions struct {
	NativeOptions
	Name   string // name of the segment
	Listen string // HOST:PORT
	// Advertise is the address for other hosts. Default: Listen.
	Advertise string
	// Path is the only permitted path. PathNone: all paths.
	Path transfer.Path
}

// Target is an engine that serves zeroed memory as a segment.
type Target struct {
	party
	server   *share.Server
	unshared error
	address  string
}

// OpenTarget serves memory until Close. It uses shared memory for processes of this host if that
// works, RDMA if there are NICs, and TCP.
func OpenTarget(ctx context.Context, o TargetOptions) (_ *Target, err error) {
	t := &Target{party: party{o: o.NativeOptions}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("offer memory: %w", errors.Join(err, t.Close()))
		}
	}()
	source, err := t.alloc(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.share(ctx, o.Path); err != nil {
		return nil, err
	}
	if err := t.open(transfer.Options{Listen: o.Listen, Advertise: o.Advertise, Share: t.server}); err != nil {
		return nil, err
	}
	s, err := t.engine.Publish(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	if _, err := s.Register(ctx, t.region, transfer.RegisterOptions{Name: memoryName, Source: source}); err != nil {
		return nil, err
	}
	t.address = t.engine.Address()
	if o.Store == nil {
		t.address += "/" + o.Name
	} else {
		t.address = o.Name
	}
	return t, nil
}

// share starts a server that exports the memory, if a path needs it. If other paths are permitted,
// an error is only stored for Unshared.
func (t *Target) share(ctx context.Context, path transfer.Path) error {
	if path == transfer.PathTCP || path == transfer.PathRDMA {
		return nil
	}
	server, err := share.NewServer(share.Options{})
	if err == nil {
		err = server.Start(ctx)
	}
	switch {
	case err == nil:
		t.server = server
	case path == transfer.PathNone && ctx.Err() == nil:
		t.unshared = err
	default:
		return err
	}
	return nil
}

// Unshared returns the reason for which the memory is not shared with processes of this host, or
// nil if it is shared or no path needs it.
func (t *Target) Unshared() error { return t.unshared }

// Segment returns the address of the segment.
func (t *Target) Segment() string { return t.address }

// Close stops serving and frees the memory. Processes that have imported it lose it.
func (t *Target) Close() error {
	err := t.close()
	if t.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, t.server.Close(ctx))
	}
	return err
}

// Native executes batches with kvlane's transfer engine. It uses the largest buffer of a segment.
type Native struct {
	party
	path     transfer.Path
	importer *share.Importer
	remote   *transfer.Remote
	target   transfer.Buffer
}

// OpenNative opens a segment. It uses the given path only, or any path with PathNone.
func OpenNative(ctx context.Context, segment string, path transfer.Path, o NativeOptions) (_ *Native, err error) {
	n := &Native{party: party{o: o}, path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if _, err := n.alloc(ctx); err != nil {
		return nil, err
	}
	if n.importer, err = share.NewImporter(o.Device, share.ImportOptions{}); err != nil {
		return nil, err
	}
	if err := n.open(transfer.Options{Importer: n.importer}); err != nil {
		return nil, err
	}
	if err := n.engine.RegisterLocal(n.region); err != nil {
		return nil, err
	}
	if n.remote, err = n.engine.OpenSegment(ctx, segment); err != nil {
		return nil, err
	}
	buffers := n.remote.Describe().Buffers
	if len(buffers) == 0 {
		return nil, fmt.Errorf("segment %s has no memory: %w", segment, errdefs.ErrNotFound)
	}
	n.target = slices.MaxFunc(buffers, func(a, b transfer.Buffer) int { return cmp.Compare(a.Length, b.Length) })
	if err := n.reaches(path); err != nil {
		return nil, fmt.Errorf("segment %s by %s: %w", segment, path, err)
	}
	return n, nil
}

// reaches returns nil if a path can access the buffer, otherwise the reason.
func (n *Native) reaches(path transfer.Path) error {
	switch path {
	case transfer.PathNVLink, transfer.PathShm:
		return n.remote.Shared(n.target.Offset)
	case transfer.PathRDMA:
		return errors.Join(n.engine.Stats().Refusal, n.remote.RDMA(n.target.Offset))
	default:
		return nil
	}
}

// Protocol implements Driver.
func (n *Native) Protocol() string {
	switch {
	case n.path != transfer.PathNone:
		return n.path.String()
	case n.reaches(transfer.PathShm) != nil && n.reaches(transfer.PathRDMA) == nil:
		return transfer.PathRDMA.String()
	case n.reaches(transfer.PathShm) != nil:
		return transfer.PathTCP.String()
	case n.target.Kind == mem.KindDevice.String():
		return transfer.PathNVLink.String()
	}
	return transfer.PathShm.String()
}

// Target implements Driver.
func (n *Native) Target() string { return n.remote.Name() }

// Remote implements Driver.
func (n *Native) Remote() int64 { return n.target.Length }

// Local implements Driver.
func (n *Native) Local() Memory {
	return n.local()
}

// Submit implements Driver. It submits pages if all blocks have the same length and their offsets
// are multiples of it.
func (n *Native) Submit(ctx context.Context, op Op, blocks []Block) (Pending, error) {
	how := transfer.Read
	if op == Write {
		how = transfer.Write
	}
	o := transfer.SubmitOptions{Path: n.path}
	if end, ok := ctx.Deadline(); ok {
		o.Timeout = max(time.Until(end), time.Millisecond)
	}
	b, err := n.engine.Submit(ctx, n.tasks(how, blocks), o)
	if err != nil {
		return nil, err // return a nil interface, not a nil *Batch
	}
	return b, nil
}

func (n *Native) tasks(op transfer.Op, blocks []Block) []transfer.Task {
	if pages := n.pages(blocks); pages != nil {
		return []transfer.Task{{Op: op, Segment: n.remote, Pages: pages}}
	}
	tasks := make([]transfer.Task, len(blocks))
	for i, b := range blocks {
		tasks[i] = transfer.Task{
			Op: op, Segment: n.remote, Local: mem.Extent{Region: n.region, Off: b.Local, Len: b.Length}, Offset: n.target.Offset + b.Remote,
		}
	}
	return tasks
}

// pages returns the blocks as pages of one plane, or nil if that is not possible.
func (n *Native) pages(blocks []Block) *transfer.Pages {
	if len(blocks) < 2 {
		return nil
	}
	size, shift := blocks[0].Length, blocks[0].Local%blocks[0].Length
	bit := bits.TrailingZeros64(uint64(size))
	power := size == 1<<bit // use shifts, because divisions would take most of the time
	pairs := make([]transfer.PagePair, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		here, there := (b.Local-shift)>>bit, b.Remote>>bit
		if !power {
			here, there = (b.Local-shift)/size, b.Remote/size
		}
		if b.Length != size || b.Local != here*size+shift || b.Remote != there*size || max(here, there) > math.MaxUint32 {
			return nil
		}
		pairs[i] = transfer.PagePair{Local: uint32(here), Remote: uint32(there)}
	}
	return &transfer.Pages{
		Planes: []transfer.PagePlane{{Region: n.region, Base: shift, Stride: size, Bytes: size, RemoteBase: n.target.Offset, RemoteStride: size}},
		Pairs:  pairs,
	}
}

// Close closes the connections and frees the memory. Unfinished batches fail.
func (n *Native) Close() error {
	if err := n.close(); err != nil || n.importer == nil {
		return err
	}
	return n.importer.Close()
}

// local returns the memory of the driver.
func (p *party) local() Memory {
	if p.region.Bytes() != nil {
		return Host{p.region}
	}
	return (*deviceMemory)(p)
}

// deviceMemory is memory of a party without a CPU address. It is copied through pinned memory in
// pieces.
type deviceMemory party

// bounceBytes is the length of the pinned memory.
const bounceBytes = 16 << 20

// Len implements Memory.
func (d *deviceMemory) Len() int64 { return d.region.Len() }

// Store implements Memory.
func (d *deviceMemory) Store(ctx context.Context, at int64, b []byte) error {
	return d.through(ctx, at, b, func(here, there mem.Extent, piece []byte) error {
		copy(here.Bytes(), piece)
		return copied(ctx, d.o.Copy, there, here)
	})
}

// Fetch implements Memory.
func (d *deviceMemory) Fetch(ctx context.Context, at int64, b []byte) error {
	return d.through(ctx, at, b, func(here, there mem.Extent, piece []byte) error {
		err := copied(ctx, d.o.Copy, here, there)
		copy(piece, here.Bytes())
		return err
	})
}

func (d *deviceMemory) through(ctx context.Context, at int64, b []byte, move func(here, there mem.Extent, piece []byte) error) (err error) {
	d.bounceMu.Lock()
	defer d.bounceMu.Unlock()
	if d.bounce == nil {
		if d.bounce, err = d.o.Device.AllocHost(bounceBytes); err != nil {
			return err
		}
	}
	for len(b) > 0 && ctx.Err() == nil {
		n := min(int64(len(b)), bounceBytes)
		if err := move(mem.Extent{Region: d.bounce, Len: n}, mem.Extent{Region: d.region, Off: at, Len: n}, b[:n]); err != nil {
			return err
		}
		at, b = at+n, b[n:]
	}
	return context.Cause(ctx)
}

// copied copies and waits until the memory is no longer in use.
func copied(ctx context.Context, s stream.Stream, dst, src mem.Extent) error {
	t, err := s.Submit(ctx, &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		return err
	}
	<-t.Done() // a stream always resolves its tickets
	return t.Err()
}
