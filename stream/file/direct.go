package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
)

// MaxDirectHandles is the maximum number of unused files that DirectFiles keeps open.
const MaxDirectHandles = 256

// DirectFiles moves bytes between files and device memory by cuFile. A call moves one range. It
// keeps files open and registered. It implements dirfs.Direct.
type DirectFiles struct {
	opts    DirectOptions
	handles *Handles
	lanes   []*directLane // lanes for asynchronous transfers; if empty, callers wait in the library
	next    atomic.Uint64

	reads, writes, bytes, failed atomic.Int64
	quarantined                  atomic.Int64
}

// DirectOptions configure DirectFiles.
type DirectOptions struct {
	// Storage moves the bytes. The caller closes it after the DirectFiles.
	Storage device.Storage
	// Device is the device of Storage. It may be nil if Queues is zero.
	Device device.Device
	// Queues is the number of device queues that run transfers asynchronously. A file in
	// compatibility mode does not use them. Zero: callers wait in the library.
	Queues int
	// OnlyGDS refuses files in compatibility mode.
	OnlyGDS bool
	// Handles bounds the unused files that are kept open. Zero: the smaller of MaxDirectHandles and
	// an eighth of the descriptors that the process may open.
	Handles int
}

// DirectStats counts the work of DirectFiles.
type DirectStats struct {
	Reads, Writes, Bytes int64 // successful transfers
	Failed               int64 // transfers and registrations that failed
	Quarantined          int64 // transfers whose end is unknown
	Handles              HandleStats
}

var _ dirfs.Direct = (*DirectFiles)(nil)

// OpenDirect opens DirectFiles.
func OpenDirect(o DirectOptions) (*DirectFiles, error) {
	if o.Storage == nil || o.Queues < 0 || o.Handles < 0 || o.Queues > 0 && o.Device == nil {
		return nil, fmt.Errorf("open direct storage: %d queues, %d handles, storage %v: %w", o.Queues, o.Handles, o.Storage, errdefs.ErrInvalid)
	}
	if o.Handles == 0 {
		o.Handles = MaxDirectHandles
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
			o.Handles = int(max(1, min(uint64(o.Handles), limit.Cur/8)))
		}
	}
	d := &DirectFiles{opts: o, handles: NewHandles(o.Handles)}
	for range o.Queues {
		q, err := o.Device.OpenQueue(device.QueueOptions{})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open direct storage: %w", err), d.closeLanes(context.Background()))
		}
		d.lanes = append(d.lanes, &directLane{queue: q, using: make(chan struct{}, 1)})
	}
	return d, nil
}

// Stats returns the counters.
func (d *DirectFiles) Stats() DirectStats {
	return DirectStats{
		Reads: d.reads.Load(), Writes: d.writes.Load(), Bytes: d.bytes.Load(), Failed: d.failed.Load(), Quarantined: d.quarantined.Load(), Handles: d.handles.Stats(),
	}
}

// Close closes the queues and the kept files. Later reads fail. If a file is in use, or a broken
// queue may still access memory when ctx ends, it returns ErrBusy and may be called again.
func (d *DirectFiles) Close(ctx context.Context) error {
	// Files close only after the transfers of broken queues.
	if err := d.closeLanes(ctx); err != nil {
		return fmt.Errorf("close direct storage: %w", err)
	}
	if err := d.handles.Close(ctx); err != nil {
		return fmt.Errorf("close direct storage: %w", err)
	}
	return nil
}

func (d *DirectFiles) closeLanes(ctx context.Context) error {
	for _, l := range d.lanes {
		if err := l.close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Open implements dirfs.Direct.
func (d *DirectFiles) Open(ctx context.Context, dir dirfs.Dir, name string) (dirfs.DirectFile, error) {
	h, err := d.handles.Acquire(ctx, dir, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &directFile{d: d, h: h}, nil
}

// Forget implements dirfs.Direct.
func (d *DirectFiles) Forget(dir dirfs.Dir, name string) { d.handles.Forget(dir, name) }

// Mode returns how the bytes of a file are moved.
func (d *DirectFiles) Mode(f dirfs.DirectFile) (device.StorageMode, error) {
	df, ok := f.(*directFile)
	if !ok {
		return device.StorageMode{}, fmt.Errorf("%T is not a file of direct storage: %w", f, errdefs.ErrInvalid)
	}
	reg, err := df.registered()
	if err != nil {
		return device.StorageMode{}, err
	}
	return reg.Mode(), nil
}

// directFile is one use of a file.
type directFile struct {
	d *DirectFiles
	h *Handle
}

func (f *directFile) ReadAt(b []byte, off int64) (int, error) { return f.h.File().base.ReadAt(b, off) }
func (f *directFile) Stat() (dirfs.Info, error)               { return f.h.File().base.Stat() }
func (f *directFile) Release()                                { f.h.Release() }

// registered returns the registered file. After a failure the file is not kept, so that its next
// user retries the registration.
func (f *directFile) registered() (device.StorageFile, error) {
	reg, err := f.h.File().storage(f.d.opts.Storage)
	if err != nil {
		f.d.failed.Add(1)
		f.h.forget()
	}
	return reg, err
}

// ReadDirect implements dirfs.DirectFile.
func (f *directFile) ReadDirect(ctx context.Context, dst mem.Extent, off int64) (<-chan struct{}, error) {
	reg, err := f.registered()
	if err != nil {
		return nil, err
	}
	quiesced, err := f.d.move(ctx, f.h.File().name, reg, storageRead, dst, off)
	if err == nil {
		f.d.reads.Add(1)
	}
	return quiesced, err
}

// OpenWriter implements dirfs.Direct.
func (d *DirectFiles) OpenWriter(dir dirfs.Dir, name string, flag int) (dirfs.DirectWriter, error) {
	base, err := dir.Open(name, os.O_RDWR|flag)
	if err != nil {
		return nil, err
	}
	f, err := New(base, name)
	if err != nil {
		err = errors.Join(err, base.Close())
		if flag&os.O_CREATE != 0 {
			err = errors.Join(err, dir.Remove(name))
		}
		return nil, err
	}
	return &directWriter{File: base, d: d, f: f}, nil
}

// directWriter is a file that is written by direct transfers.
type directWriter struct {
	dirfs.File
	d *DirectFiles
	f *File
}

// WriteDirect implements dirfs.DirectWriter.
func (n *directWriter) WriteDirect(ctx context.Context, src mem.Extent, off int64) (<-chan struct{}, error) {
	reg, err := n.f.storage(n.d.opts.Storage)
	if err != nil {
		n.d.failed.Add(1)
		return nil, err
	}
	quiesced, err := n.d.move(ctx, n.f.name, reg, storageWrite, src, off)
	if err == nil {
		n.d.writes.Add(1)
	}
	return quiesced, err
}

// Close closes the file. If a broken queue may still access the file, DirectFiles.Close closes it.
func (n *directWriter) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	err := n.f.Close(ctx)
	if n.f.isOpen() {
		n.d.handles.keep(n.f)
	}
	return err
}

// The directions of transfers.
const (
	storageRead = iota
	storageWrite
)

// move moves one range of a file. quiesced is as in dirfs.DirectFile.
func (d *DirectFiles) move(ctx context.Context, name string, reg device.StorageFile, way int, e mem.Extent, off int64) (<-chan struct{}, error) {
	mode := reg.Mode()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case d.opts.OnlyGDS && !mode.Direct:
		return nil, fmt.Errorf("file %s: no GPU Direct Storage: %s: %w", name, mode.Reason, errdefs.ErrNotSupported)
	case (uint64(off)|uint64(e.Len)|uint64(e.Dev()))%Align != 0:
		return nil, fmt.Errorf("file %s: %d bytes at %d to %#x are not aligned to %d: %w", name, e.Len, off, uint64(e.Dev()), Align, errdefs.ErrInvalid)
	}
	n, quiesced, err := d.transfer(ctx, reg, way, e, off)
	if err == nil && n != e.Len {
		err = io.ErrUnexpectedEOF
		if way == storageWrite {
			err = io.ErrShortWrite
		}
	}
	if err != nil {
		d.failed.Add(1)
		return quiesced, fmt.Errorf("%s file %s by cuFile: %d of %d bytes at %d: %w", [...]string{"read", "write"}[way], name, n, e.Len, off, err)
	}
	d.bytes.Add(n)
	return nil, nil
}

// transfer moves one range, on a queue if possible.
func (d *DirectFiles) transfer(ctx context.Context, reg device.StorageFile, way int, m mem.Extent, off int64) (int64, <-chan struct{}, error) {
	call := reg.Read
	if way == storageWrite {
		call = reg.Write
	}
	e, able := reg.(device.StorageEnqueuer)
	// libcufile 1.15 corrupts its heap under many asynchronous transfers in compatibility mode.
	if !able || !reg.Mode().Direct || len(d.lanes) == 0 {
		n, err := call(m, off)
		return n, nil, err
	}
	l := d.lanes[d.next.Add(1)%uint64(len(d.lanes))]
	enqueue := e.EnqueueRead
	if way == storageWrite {
		enqueue = e.EnqueueWrite
	}
	x, err := l.enqueue(ctx, enqueue, m, off)
	if errors.Is(err, errdefs.ErrNotSupported) { // older libraries return it
		n, err := call(m, off)
		return n, nil, err
	}
	if err != nil {
		return 0, nil, err
	}
	n, err := x.Wait(context.WithoutCancel(ctx))
	if _, done, _ := x.Done(); done {
		x.Close()
		return n, nil, err
	}
	// The queue is broken, and may access the memory until it is idle.
	quiesced := make(chan struct{})
	d.quarantined.Add(1)
	l.whenIdle(func() {
		x.Close()
		d.quarantined.Add(-1)
		close(quiesced)
	})
	return 0, quiesced, errors.Join(errdefs.ErrBroken, err)
}

// directLane is a device queue for transfers. It has one user at a time.
type directLane struct {
	queue device.Queue
	using chan struct{} // token

	mu     sync.Mutex
	broken bool
	closed bool
	idle   []func() // called when the broken queue no longer accesses memory
}

// enqueue enqueues a transfer. It returns ErrBroken if the queue is broken.
func (l *directLane) enqueue(ctx context.Context, call func(device.Queue, mem.Extent, int64) (device.Transfer, error), e mem.Extent, off int64) (device.Transfer, error) {
	select {
	case l.using <- struct{}{}:
		defer func() { <-l.using }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	broken, closed := l.broken, l.closed
	l.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("direct storage: %w", errdefs.ErrClosed)
	case broken:
		return nil, fmt.Errorf("the queue of direct storage is broken: %w", errdefs.ErrBroken)
	}
	return call(l.queue, e, off)
}

// whenIdle marks the queue as broken. close will call f when the queue is idle.
func (l *directLane) whenIdle(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = true
	l.idle = append(l.idle, f)
}

// close closes the queue. Once the queue is idle it calls the functions of whenIdle.
func (l *directLane) close(ctx context.Context) error {
	select {
	case l.using <- struct{}{}:
		defer func() { <-l.using }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
	l.mu.Lock()
	closed, wasBroken := l.closed, l.broken
	l.mu.Unlock()
	var err error
	if !closed {
		if err = l.queue.Close(ctx); err != nil && ctx.Err() != nil {
			return fmt.Errorf("close queue for cuFile: %w: %w", errdefs.ErrBusy, err) // the queue is still open
		}
	}
	l.mu.Lock()
	idle := l.idle
	l.idle, l.closed = nil, true
	l.mu.Unlock()
	for _, f := range idle {
		f()
	}
	if err != nil && !wasBroken {
		return fmt.Errorf("close queue for cuFile: %w", err)
	}
	return nil
}
