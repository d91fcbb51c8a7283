package transfer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
)

// TestWriteAndRead writes bytes and reads them back, as one piece and as many scattered pieces,
// over several connections.
func TestWriteAndRead(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { writeAndRead(t, nil, PathTCP) })
	t.Run("rdma", func(t *testing.T) { writeAndRead(t, softNICs(t, nil, 2), PathRDMA) })
}

func writeAndRead(t *testing.T, nics *rail.NICs, path Path) {
	const n = 3<<20 + 4097
	there, here, back := host(t, n), host(t, n), host(t, n)
	p := newPair(t, Options{NICs: nics}, Options{NICs: nics, PartBytes: 256 << 10, Lanes: 3}, there)
	p.local(t, here, back)
	pattern(here.Bytes(), 1)
	b := p.do(t, Task{Op: Write, Local: mem.All(here)})
	same(t, "written", there.Bytes(), here.Bytes())
	if c := b.Completion(); c.Bytes[path] != n || c.Fallback != nil || b.Status() != StatusCompleted || b.Task(0).Path != path {
		t.Errorf("completion %+v, %s", c, b.Status())
	}
	b = p.do(t, Task{Op: Read, Local: mem.All(back)})
	if c := b.Completion(); c.Bytes[path] != n {
		t.Errorf("completion %+v", c)
	}
	same(t, "read", back.Bytes(), here.Bytes())
	// Move every second small block, in different orders on the two sides.
	pattern(here.Bytes(), 2)
	const block = 1000
	var tasks []Task
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n / block / 2) {
		tasks = append(tasks, Task{Op: Write, Local: mem.Extent{Region: here, Off: int64(2*i) * block, Len: block}, Offset: int64(2*i+1) * block})
	}
	want := append([]byte(nil), there.Bytes()...)
	for i := range tasks {
		copy(want[tasks[i].Offset:], tasks[i].Local.Bytes())
	}
	p.do(t, tasks...)
	same(t, "scattered", there.Bytes(), want)
	for i := range tasks {
		tasks[i].Op = Read
	}
	clear(back.Bytes())
	for i := range tasks {
		tasks[i].Local.Region = back
	}
	p.do(t, tasks...)
	for i := range tasks {
		off := tasks[i].Local.Off
		same(t, fmt.Sprintf("block %d", i), tasks[i].Local.Bytes(), here.Bytes()[off:off+block])
	}
	s := p.target.Stats()
	if sockets := path == PathTCP; sockets != (s.BytesIn > 0) || sockets != (s.BytesOut > 0) || sockets != (s.Requests > 0) || s.Malformed != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestNeighboursAreOne checks that extents that are adjacent on one side are merged into one piece
// on that side.
func TestNeighboursAreOne(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p := newPair(t, Options{}, Options{}, there)
	c := cutter{e: p.initiator}
	for i := range int64(100) {
		must(t, c.add(int(i), &Task{Op: Write, Segment: p.remote, Local: mem.Extent{Region: here, Off: (i % 2) * 8192 * i, Len: 4096}, Offset: 4096 * i}))
	}
	if len(c.parts) != 1 || len(c.parts[0].shape.planes) != 1 || len(c.parts[0].list) < 50 {
		t.Errorf("%d parts, the first of %+v", len(c.parts), c.parts[0].shape)
	}
}

// TestPages checks that the compact form of a request moves every page of every plane, with device
// memory on both sides.
func TestPages(t *testing.T) {
	for _, part := range []int64{16 << 10, 8 << 20} {
		t.Run(fmt.Sprintf("tcp/%d", part), func(t *testing.T) {
			pagesMove(t, newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1}), nil, part, PathTCP)
		})
		t.Run(fmt.Sprintf("rdma/%d", part), func(t *testing.T) {
			one := newGPU(t, sim.Options{}) // its streams copy the bytes of the software NICs
			pagesMove(t, one, one, softNICs(t, one.Device, 1), part, PathRDMA)
		})
	}
}

func pagesMove(t *testing.T, near, far *gpu, nics *rail.NICs, part int64, path Path) {
	const planes, pages, bytes, n = 5, 40, 3000, 5 * 40 * 4096
	here, there := near.alloc(t, n), far.alloc(t, n)
	to, o := far.options(), near.options()
	to.NICs, o.NICs, o.PartBytes = nics, nics, part
	p := newPair(t, to, o, there)
	p.local(t, here)
	data := make([]byte, n)
	pattern(data, 3)
	near.store(t, here, data)
	far.store(t, there, make([]byte, n))
	pg := &Pages{}
	for i := range int64(planes) {
		pg.Planes = append(pg.Planes, PagePlane{
			Region: here, Base: i * pages * 4096, Stride: 4096, Bytes: bytes, RemoteBase: (planes - 1 - i) * pages * 4096, RemoteStride: 4096,
		})
	}
	for i, k := range rand.New(rand.NewPCG(2, 2)).Perm(pages)[:30] {
		pg.Pairs = append(pg.Pairs, PagePair{Local: uint32(i), Remote: uint32(k)})
	}
	want := make([]byte, n)
	for _, pl := range pg.Planes {
		for _, x := range pg.Pairs {
			from, to := pl.Base+int64(x.Local)*4096, pl.RemoteBase+int64(x.Remote)*4096
			copy(want[to:to+bytes], data[from:from+bytes])
		}
	}
	b := p.do(t, Task{Op: Write, Pages: pg})
	same(t, "written", far.load(t, there), want)
	if c := b.Completion(); c.Bytes[path] != planes*30*bytes {
		t.Errorf("completion %+v", c)
	}
	near.store(t, here, make([]byte, n))
	p.do(t, Task{Op: Read, Pages: pg})
	got := near.load(t, here)
	for _, pl := range pg.Planes {
		for _, x := range pg.Pairs {
			at := pl.Base + int64(x.Local)*4096
			same(t, "read", got[at:at+bytes], data[at:at+bytes])
		}
	}
}

// TestSharedMemory checks that device and host memory of one host is copied through mappings.
func TestSharedMemory(t *testing.T) {
	const n = 1 << 20
	near, far := newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1})
	s := shareServer(t)
	in := importer(t, near.Device)
	there := far.alloc(t, n)
	hostThere, err := share.AllocHost(nil, n)
	must(t, err)
	t.Cleanup(func() { must(t, hostThere.Close()) })
	to, from := far.options(), near.options()
	to.Share, from.Importer = s, in
	p := newPair(t, to, from)
	_, err = p.segment.Register(t.Context(), there, RegisterOptions{Source: far.sharer()})
	must(t, err)
	off, err := p.segment.Register(t.Context(), hostThere.Region(), RegisterOptions{Source: hostThere, Name: "host"})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	here, back := near.alloc(t, n), near.alloc(t, n)
	data := make([]byte, n)
	pattern(data, 4)
	near.store(t, here, data)
	b := p.do(t, Task{Op: Write, Local: mem.All(here)}, Task{Op: Write, Local: mem.All(here), Offset: off})
	same(t, "device", far.load(t, there), data)
	same(t, "host", hostThere.Region().Bytes(), data)
	if c := b.Completion(); c.Bytes[PathNVLink] != n || c.Bytes[PathShm] != n || c.Fallback != nil {
		t.Errorf("completion %+v", c)
	}
	p.do(t, Task{Op: Read, Local: mem.All(back)})
	same(t, "back", near.load(t, back), data)
	mine := host(t, n)
	b = p.do(t, Task{Op: Read, Local: mem.All(mine), Offset: off})
	same(t, "host to host", mine.Bytes(), data)
	if c := b.Completion(); c.Bytes[PathShm] != n {
		t.Errorf("completion %+v", c)
	}
	// The device cannot copy pageable memory, so it is sent over sockets.
	if b = p.do(t, Task{Op: Read, Local: mem.All(mine)}); b.Completion().Bytes[PathTCP] != n || b.Completion().Fallback == nil {
		t.Errorf("completion %+v", b.Completion())
	}
	forced := p.submit(t, SubmitOptions{Path: PathNVLink}, Task{Op: Read, Local: mem.All(mine)})
	wantErr(t, "forced", wait(t, forced), errdefs.ErrNotSupported)
}

// TestPagesOfSharedMemory checks that pages of imported memory are copied as pages, with planes in
// separate ranges or interleaved.
func TestPagesOfSharedMemory(t *testing.T) {
	const pages, bytes, planes, n = 16, 3000, 3, 3 * 16 * 4096
	near, far := newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1})
	there, here := far.alloc(t, n), near.alloc(t, n)
	to, from := far.options(), near.options()
	to.Share, from.Importer = shareServer(t), importer(t, near.Device)
	p := newPair(t, to, from)
	_, err := p.segment.Register(t.Context(), there, RegisterOptions{Source: far.sharer()})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	data := make([]byte, n)
	pattern(data, 5)
	for name, apart := range map[string]bool{"apart": true, "between": false} {
		pg := &Pages{}
		for i := range int64(planes) {
			pl := PagePlane{Region: here, Base: i * pages * 4096, Stride: 4096, Bytes: bytes, RemoteBase: i * pages * 4096, RemoteStride: 4096}
			// Interleave the planes page by page. The last page of a plane then ends less than a
			// stride before the end of the memory.
			if !apart {
				pl.RemoteBase, pl.RemoteStride = i*4096, planes*4096
			}
			pg.Planes = append(pg.Planes, pl)
		}
		for i, k := range rand.New(rand.NewPCG(3, 3)).Perm(pages) {
			pg.Pairs = append(pg.Pairs, PagePair{Local: uint32(i), Remote: uint32(k)})
		}
		want := make([]byte, n)
		for _, pl := range pg.Planes {
			for _, x := range pg.Pairs {
				from, to := pl.Base+int64(x.Local)*4096, pl.RemoteBase+int64(x.Remote)*pl.RemoteStride
				copy(want[to:to+bytes], data[from:from+bytes])
			}
		}
		near.store(t, here, data)
		far.store(t, there, make([]byte, n))
		b := p.do(t, Task{Op: Write, Pages: pg})
		same(t, name+", written", far.load(t, there), want)
		if c := b.Completion(); c.Bytes[PathNVLink] != pages*planes*bytes || c.Fallback != nil {
			t.Errorf("%s: completion %+v", name, c)
		}
		near.store(t, here, make([]byte, n))
		p.do(t, Task{Op: Read, Pages: pg})
		got := near.load(t, here)
		for _, pl := range pg.Planes {
			for _, x := range pg.Pairs {
				at := pl.Base + int64(x.Local)*4096
				same(t, name+", read", got[at:at+bytes], data[at:at+bytes])
			}
		}
	}
}

// TestNotify checks that a notification arrives once, after its data.
func TestNotify(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p := newPair(t, Options{}, Options{PartBytes: 64 << 10}, there)
	for i := range byte(20) {
		pattern(here.Bytes(), i)
		p.submit(t, SubmitOptions{Notify: []byte{i}}, Task{Op: Write, Local: mem.All(here)})
		n, err := p.target.Receive(t.Context())
		must(t, err)
		if len(n.Body) != 1 || n.Body[0] != i || n.Segment != "kv" || n.From != p.initiator.Identity() {
			t.Errorf("notice %+v", n)
		}
		same(t, "data", there.Bytes(), here.Bytes())
	}
	q := notifyRequest{From: p.initiator.Identity(), Number: 1 << 40, Segment: "kv"}
	for range 3 {
		must(t, p.target.inbox.put(&q))
	}
	if got := len(p.target.inbox.ready); got != 1 {
		t.Errorf("a notification that arrived three times was delivered %d times", got)
	}
}

// TestUnregister checks that requests for unregistered memory are refused, and so are requests for
// its offset after another region was registered. Other memory stays usable.
func TestUnregister(t *testing.T) {
	a, b, here := host(t, 1<<16), host(t, 1<<16), host(t, 1<<16)
	p := newPair(t, Options{}, Options{}, a)
	must(t, p.segment.Unregister(t.Context(), 0))
	off, err := p.segment.Register(t.Context(), b, RegisterOptions{})
	must(t, err)
	if off == 0 {
		t.Error("an offset is reused")
	}
	bad := p.submit(t, SubmitOptions{}, Task{Op: Write, Local: mem.All(here)})
	wantErr(t, "write to what was unregistered", wait(t, bad), errdefs.ErrNotFound)
	if r := bad.Task(0); r.Status != StatusFailed || bad.Status() != StatusFailed {
		t.Errorf("%+v, %s", r, bad.Status())
	}
	must(t, p.remote.Refresh(t.Context()))
	p.do(t, Task{Op: Write, Local: mem.All(here), Offset: off})
	must(t, p.segment.Close(t.Context()))
	gone := p.submit(t, SubmitOptions{}, Task{Op: Read, Local: mem.All(here), Offset: off})
	wantErr(t, "read of a closed segment", wait(t, gone), errdefs.ErrNotFound)
	wantErr(t, "refresh", p.remote.Refresh(t.Context()), errdefs.ErrNotFound)
	_, err = p.initiator.OpenSegment(t.Context(), p.target.Address()+"/kv")
	wantErr(t, "open", err, errdefs.ErrNotFound)
}

// TestSubmitRefuses checks that a batch with an invalid task does not start.
func TestSubmitRefuses(t *testing.T) {
	there, here := host(t, 1<<16), host(t, 1<<16)
	p := newPair(t, Options{}, Options{}, there)
	other := engine(t, Options{})
	for name, task := range map[string]Task{
		"no operation":       {Segment: p.remote, Local: mem.All(here)},
		"no segment":         {Op: Read, Local: mem.All(here)},
		"no memory":          {Op: Read, Segment: p.remote},
		"beyond the buffer":  {Op: Read, Segment: p.remote, Local: mem.All(here), Offset: 1},
		"a negative offset":  {Op: Read, Segment: p.remote, Local: mem.All(here), Offset: -1},
		"beyond the region":  {Op: Read, Segment: p.remote, Local: mem.Extent{Region: here, Off: 1, Len: 1 << 16}},
		"an offset that ...": {Op: Read, Segment: p.remote, Local: mem.Extent{Region: here, Len: 1}, Offset: 1<<63 - 1},
		"a page beyond": {Op: Read, Segment: p.remote, Pages: &Pages{
			Planes: []PagePlane{{Region: here, Stride: 4096, Bytes: 4096, RemoteStride: 4096}}, Pairs: []PagePair{{0, 16}},
		}},
		"a page that overflows": {Op: Read, Segment: p.remote, Pages: &Pages{
			Planes: []PagePlane{{Region: here, Stride: 4096, Bytes: 4096, RemoteStride: 1 << 62}}, Pairs: []PagePair{{0, 4}},
		}},
	} {
		good := Task{Op: Write, Segment: p.remote, Local: mem.All(here)}
		_, err := p.initiator.Submit(t.Context(), []Task{good, task}, SubmitOptions{})
		wantErr(t, name, err, errdefs.ErrInvalid)
	}
	_, err := other.Submit(t.Context(), []Task{{Op: Read, Segment: p.remote, Local: mem.All(here)}}, SubmitOptions{})
	wantErr(t, "another engine's segment", err, errdefs.ErrInvalid)
	if s := p.target.Stats(); s.Requests != 0 {
		t.Errorf("%d requests were made", s.Requests)
	}
	p.do(t)
	p.do(t, Task{Op: Read, Local: mem.Extent{Region: here}})
}

// dependency is a mem.Dependency of a batch that the test resolves.
type dependency struct {
	done chan struct{}
	err  error
}

func (d *dependency) Done() <-chan struct{} { return d.done }
func (d *dependency) Err() error            { return d.err }

func TestAfterCancelAndTimeout(t *testing.T) {
	there, here := host(t, 1<<16), host(t, 1<<16)
	p := newPair(t, Options{}, Options{}, there)
	task := Task{Op: Write, Local: mem.All(here)}
	d := &dependency{done: make(chan struct{})}
	b := p.submit(t, SubmitOptions{After: []mem.Dependency{d}}, task)
	if b.Status() != StatusWaiting {
		t.Errorf("%s", b.Status())
	}
	close(d.done)
	must(t, wait(t, b))
	d = &dependency{done: make(chan struct{})}
	b = p.submit(t, SubmitOptions{After: []mem.Dependency{d}}, task)
	b.Cancel()
	wantErr(t, "cancelled", wait(t, b), errdefs.ErrCanceled)
	if b.Status() != StatusCanceled || b.Task(0).Status != StatusCanceled {
		t.Errorf("%s, %+v", b.Status(), b.Task(0))
	}
	b = p.submit(t, SubmitOptions{After: []mem.Dependency{d}, Timeout: 10 * time.Millisecond}, task)
	wantErr(t, "late", wait(t, b), context.DeadlineExceeded)
	if b.Status() != StatusTimeout {
		t.Errorf("%s", b.Status())
	}
	d.err = errdefs.ErrCorrupt
	close(d.done)
	wantErr(t, "failed before", wait(t, p.submit(t, SubmitOptions{After: []mem.Dependency{d}}, task)), errdefs.ErrCorrupt)
	took, err := p.remote.Probe(t.Context())
	must(t, err)
	if took <= 0 {
		t.Errorf("the probe lasted %v", took)
	}
}
