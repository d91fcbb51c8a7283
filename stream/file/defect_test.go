package file_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// unresolved checks that the ticket does not resolve for a while.
func unresolved(t *testing.T, ticket *stream.Ticket) {
	t.Helper()
	select {
	case <-ticket.Done():
		t.Errorf("the ticket is resolved: %v", ticket.Err())
	case <-time.After(20 * time.Millisecond):
	}
}

// A canceled batch resolved while a read still wrote to its memory.
func TestDefectCanceledBatchLeavesATransferBehind(t *testing.T) {
	plan := fault.New(1)
	fs := faulty(t, plan)
	r, end := fs.alloc(t, 8*file.Align), streamtest.Pageable(t, 8*file.Align)
	fs.memory().Write(t, mem.All(r), make([]byte, r.Len()))
	s := closeAtEnd(t, open(t, file.Options{ChunkBytes: file.Align, Transfers: 2}))
	plan.Add(fault.Nth("read", int(plan.Seen("read"))).Stall())
	ticket, err := s.Submit(within(t), &mem.Batch{Dst: []mem.Extent{mem.All(end)}, Src: []mem.Extent{mem.All(r)}})
	if err == nil {
		err = plan.Await(within(t), 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	ticket.Cancel()
	unresolved(t, ticket)
	plan.Release()
	if err := ticket.Wait(within(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
		t.Error(err)
	}
}

// late is a copy stream that starts each batch some time after it is submitted.
type late struct{ stream.Stream }

func (l late) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	g := make(gate)
	time.AfterFunc(5*time.Millisecond, func() { close(g) })
	b.After = append(b.After, g)
	return l.Stream.Submit(ctx, b)
}

// counted is a late stream that counts its batches.
type counted struct {
	late
	batches *atomic.Int32
}

func (c counted) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	c.batches.Add(1)
	return c.late.Submit(ctx, b)
}

// Each chunk was a separate batch of the copy stream, and waiting for its completion took longer
// than its copy.
func TestDefectChunksCrossOneByOne(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	fs := real(t)
	const pages, chunks = 96, 24
	r, to := fs.alloc(t, pages*file.Align), streamtest.DeviceMemory(dev).Alloc(t, pages*file.Align)
	inner := counted{late{copies}, new(atomic.Int32)}
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: inner, ChunkBytes: file.Align, Chunks: chunks}))
	for _, way := range []struct {
		what     string
		dst, src *mem.Region
	}{{"write", r, to}, {"read", to, r}} {
		inner.batches.Store(0)
		if _, err := try(t, s, mem.All(way.dst), mem.All(way.src)); err != nil {
			t.Fatal(err)
		}
		if n := inner.batches.Load(); n == 0 || n > pages/3 {
			t.Errorf("%s: %d batches for %d chunks of %d", way.what, n, pages, chunks)
		}
	}
}

// A batch with another forced path failed because cuFile could not register its file.
func TestDefectForcedPathAsksCuFile(t *testing.T) {
	plan := fault.New(1)
	plan.Add(fault.Nth(sim.OpFileRegister, 0).Fail(nil))
	dev, copies := openSim(t, sim.Options{Faults: plan})
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev)}, Path: stream.PathPosix}))
	c, err := try(t, s, mem.All(real(t).alloc(t, 4096)), mem.All(streamtest.DeviceMemory(dev).Alloc(t, 4096)))
	if err != nil || c.Path != stream.PathPosix {
		t.Errorf("%+v: %v", c, err)
	}
}

// A chunk was filled again before its previous content was copied.
func TestDefectChunkIsFilledBeforeItIsCopied(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	fs := real(t)
	const pages = 6
	r, d := fs.alloc(t, pages*file.Align), streamtest.DeviceMemory(dev)
	text := make([]byte, r.Len())
	for i := range text {
		text[i] = byte(1 + i/file.Align)
	}
	fs.memory().Write(t, mem.All(r), text)
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: late{copies}, ChunkBytes: file.Align, Chunks: 2}))
	to := d.Alloc(t, r.Len())
	if _, err := try(t, s, mem.All(to), mem.All(r)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(d.Read(t, mem.All(to)), text) {
		t.Error("wrong bytes were read")
	}
}

// A write of whole pages also wrote the bytes of the chunk after the last piece.
func TestDefectWriteOverwritesItsNeighbours(t *testing.T) {
	fs := real(t)
	dev, copies := openSim(t, sim.Options{})
	const n = 4 * file.Align
	r, d := fs.alloc(t, n), streamtest.DeviceMemory(dev)
	text := bytes.Repeat([]byte("x"), n)
	from := d.Alloc(t, n)
	d.Write(t, mem.All(from), bytes.Repeat([]byte("y"), n))
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, Path: stream.PathPosix}))
	for _, at := range []mem.Extent{{Off: 0, Len: file.Align + 100}, {Off: 100, Len: file.Align - 100}, {Off: 4000, Len: 5000}} {
		fs.memory().Write(t, mem.All(r), text)
		if _, err := try(t, s, mem.All(r).Sub(at.Off, at.Len), mem.All(from).Sub(0, at.Len)); err != nil {
			t.Fatal(err)
		}
		want := bytes.Clone(text)
		copy(want[at.Off:at.Off+at.Len], bytes.Repeat([]byte("y"), n))
		if !bytes.Equal(fs.memory().Read(t, mem.All(r)), want) {
			t.Errorf("a write of %d bytes at %d: the file is wrong", at.Len, at.Off)
		}
	}
}

// A handle that was idle, and then acquired again, was evicted.
func TestDefectHandleThatIsAcquiredAgainIsEvicted(t *testing.T) {
	c := newCache(t, 2)
	for _, name := range []string{"a", "b", "c"} {
		c.write(name, "text of "+name)
	}
	c.acquire("a").Release()
	a := c.acquire("a")
	c.acquire("b").Release()
	c.acquire("c").Release()
	c.holds(a, "text of a")
	c.stats(file.HandleStats{Open: 2, Held: 1, Hits: 1, Opens: 3, Evictions: 1})
	a.Release()
}

// witness is a storage that records whether the descriptor of a file is still open when the file is
// deregistered.
type witness struct {
	device.Storage
	path string
	seen atomic.Int32
	t    *testing.T
}

type witnessed struct {
	device.StorageFile
	w  *witness
	fd int
}

func (w *witness) Register(fd int) (device.StorageFile, error) {
	f, err := w.Storage.Register(fd)
	if err != nil {
		return nil, err
	}
	return &witnessed{f, w, fd}, nil
}

func (f *witnessed) Close(ctx context.Context) error {
	var of, is unix.Stat_t
	if err := errors.Join(unix.Fstat(f.fd, &of), unix.Stat(f.w.path, &is)); err != nil || of.Ino != is.Ino || of.Dev != is.Dev {
		f.w.t.Errorf("descriptor %d is not the file's any more: %v", f.fd, err)
	}
	f.w.seen.Add(1)
	return f.StorageFile.Close(ctx)
}

// A descriptor was closed, and its number possibly reused, before the file was deregistered from
// cuFile.
func TestDefectDescriptorClosedBeforeItIsDeregistered(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, make([]byte, file.Align), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, direct := range []bool{true, false} {
		w := &witness{Storage: openStorage(t, dev), path: path, t: t}
		s := open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: w}, Path: stream.PathCuFile})
		h, err := openDir(t, dirfs.OS(), dir).Open("file", os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		var f *file.File
		var refused error
		registered := int32(1)
		if direct {
			f, err = file.New(h, "file")
		} else {
			refused, registered = errdefs.ErrNotSupported, 0
			f, err = file.NewWith(h, "file", refuseDirect)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.Region(file.Align)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := try(t, s, mem.All(streamtest.DeviceMemory(dev).Alloc(t, file.Align)), mem.All(r)); !errors.Is(err, refused) {
			t.Errorf("O_DIRECT %v: %v, want %v", direct, err, refused)
		}
		if err := errors.Join(s.Close(within(t)), f.Close(within(t)), w.Close()); err != nil || w.seen.Load() != registered {
			t.Errorf("O_DIRECT %v: deregistered %d times: %v", direct, w.seen.Load(), err)
		}
	}
}

// breaking is a device whose queues break: their events no longer report whether work is done, and
// the queues become idle only later.
type breaking struct {
	*sim.Device
	broken chan struct{} // the queues break when it is closed
	idle   chan struct{} // the queues are idle when it is closed; Close of a queue detects that
}

func (d *breaking) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	sq, _ := q.(*sim.Queue)
	return &breakingQueue{sq, d}, nil
}

type breakingQueue struct {
	*sim.Queue
	d *breaking
}

func (q *breakingQueue) Record() (device.Event, error) {
	e, err := q.Queue.Record()
	return &breakingEvent{e, q.d}, err
}

func (q *breakingQueue) Close(ctx context.Context) error {
	select {
	case <-q.d.broken:
		select {
		case <-q.d.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	default:
	}
	return q.Queue.Close(ctx)
}

type breakingEvent struct {
	device.Event
	d *breaking
}

var errUnknown = errors.New("the context is destroyed")

func (e *breakingEvent) Done() (bool, error) {
	select {
	case <-e.d.broken:
		select {
		case <-e.d.idle:
		default:
			return false, errUnknown
		}
	default:
	}
	return e.Event.Done()
}

func (e *breakingEvent) Wait(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.d.broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := e.Event.Wait(ctx); err != nil {
		return errUnknown
	}
	return nil
}

// A broken queue of the device was waited for without a limit, or memory that it may still access
// was released.
func TestDefectBrokenQueueIsWaitedForWithoutEnd(t *testing.T) {
	plan := fault.New(1)
	dev, copies := openSim(t, sim.Options{Faults: plan})
	b := &breaking{Device: dev, broken: make(chan struct{}), idle: make(chan struct{})}
	s := open(t, file.Options{Device: b, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev), Queues: 1}, Path: stream.PathCuFile})
	s.UsePatience(5 * time.Millisecond)
	fs := real(t)
	r := fs.alloc(t, file.Align)
	fs.memory().Write(t, mem.All(r), make([]byte, file.Align))
	d := streamtest.DeviceMemory(dev).Alloc(t, file.Align)
	plan.Add(fault.Nth(sim.OpFileRead, 0).Stall())
	var tickets []*stream.Ticket
	for range 2 {
		ticket, err := s.Submit(within(t), &mem.Batch{Dst: []mem.Extent{mem.All(d)}, Src: []mem.Extent{mem.All(r)}})
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	if err := plan.Await(within(t), 1); err != nil {
		t.Fatal(err)
	}
	for plan.Seen(sim.OpFileEnqueue) < 2 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	close(b.broken)
	for ctx := within(t); s.Stats().Quarantined < 2 && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
	if got := s.Stats(); got.Quarantined < 2 {
		t.Errorf("stats %+v", got)
	} else {
		staysBroken(t, s, mem.All(d), mem.All(r))
	}
	for _, ticket := range tickets {
		unresolved(t, ticket)
	}
	plan.Release()
	close(b.idle)
	if err := s.Close(within(t)); err != nil {
		t.Error(err)
	}
	for _, ticket := range tickets {
		if err := ticket.Wait(within(t)); !errors.Is(err, errUnknown) {
			t.Errorf("a ticket that was in quarantine: %v", err)
		}
	}
	if n := s.Stats().Quarantined; n != 0 {
		t.Errorf("%d transfers in quarantine after close", n)
	}
}

// staysBroken checks that a later batch fails at once and that Close returns ErrBusy.
func staysBroken(t *testing.T, s *file.Stream, dst, src mem.Extent) {
	t.Helper()
	if _, err := try(t, s, dst, src); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, errUnknown) {
		t.Errorf("a batch behind the failure: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with the device at work: %v", err)
	}
}

// Thousands of asynchronous transfers in cuFile's compatibility mode crashed the process.
func TestDefectAsynchronousTransfersInCompatibilityMode(t *testing.T) {
	for compat, want := range map[string]error{"no nvidia-fs": nil, "": errdefs.ErrNoSpace} {
		plan := fault.New(1, fault.Nth(sim.OpFileEnqueue, 0).Fail(errdefs.ErrNoSpace))
		dev, copies := openSim(t, sim.Options{Faults: plan, Storage: sim.StorageModel{Compat: compat}})
		s := open(t, file.Options{
			Device: dev, Copy: copies, Path: stream.PathCuFile, CuFile: file.CuFileOptions{Storage: openStorage(t, dev), Queues: 2},
		})
		from := real(t).memory()
		r := from.Alloc(t, file.Align)
		from.Write(t, mem.All(r), make([]byte, file.Align))
		if _, err := try(t, s, mem.All(streamtest.DeviceMemory(dev).Alloc(t, file.Align)), mem.All(r)); !errors.Is(err, want) {
			t.Errorf("compatibility mode %q: %v, want %v", compat, err, want)
		}
		if err := s.Close(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// With "auto", every batch failed if cuFile returned "not supported".
func TestDefectUnsupportedCuFileIsNotGivenUp(t *testing.T) {
	plan := fault.New(1, fault.After(sim.OpFileWrite, 0).Fail(errdefs.ErrNotSupported))
	for _, queues := range []int{0, 2} {
		dev, copies := openSim(t, sim.Options{Faults: plan})
		s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev), Queues: queues}, Chunks: 2}))
		fs, d := real(t), streamtest.DeviceMemory(dev).Alloc(t, file.Align)
		for i := range 3 {
			c, err := try(t, s, mem.All(fs.alloc(t, file.Align)), mem.All(d))
			if i == 0 && !errors.Is(err, errdefs.ErrNotSupported) || i > 0 && (err != nil || c.Path != stream.PathPosix || (i == 1) != (c.GivenUp != nil)) {
				t.Errorf("%d queues, batch %d: %+v: %v", queues, i, c, err)
			}
		}
		if got := s.Stats(); got.GivenUp != 1 || got.Failed != 1 {
			t.Errorf("stats %+v", got)
		}
	}
}

// A library without asynchronous transfers, or one that refuses them, moved no bytes.
func TestDefectCuFileWithoutAsyncMovesNothing(t *testing.T) {
	for name, o := range map[string]sim.Options{
		"none":    {Storage: sim.StorageModel{NoAsync: true}},
		"refused": {Faults: fault.New(1, fault.After(sim.OpFileEnqueue, 0).Fail(errdefs.ErrNotSupported))},
	} {
		dev, copies := openSim(t, o)
		s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev), Queues: 1}, Chunks: 2}))
		c, err := try(t, s, mem.All(real(t).alloc(t, 4*file.Align)), mem.All(streamtest.DeviceMemory(dev).Alloc(t, 4*file.Align)))
		if got := s.Stats(); err != nil || c.Path != stream.PathCuFile || got.Waited != 1 || got.GivenUp != 0 {
			t.Errorf("%s: %+v: %v; stats %+v", name, c, err, got)
		}
	}
}
