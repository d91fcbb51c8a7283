package share_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// gpu is a simulated device that knows the handles of a GPU, as a host without an IMEX channel does: the calls for fabric handles are
// there, and making memory for them is not permitted.
type gpu struct {
	*sim.Device
	types []device.HandleType
}

func (g gpu) HandleTypes() []device.HandleType { return g.types }

func (g gpu) Alloc(n int64, o device.AllocOptions) (*mem.Region, error) {
	if o.Handle == device.HandleFabric {
		return nil, &device.Error{Call: "cuMemCreate", Code: 800, Name: "CUDA_ERROR_NOT_PERMITTED", Kind: errdefs.ErrNotSupported}
	}
	return g.Device.Alloc(n, o)
}

// TestRequirement1ProbeByDoing: each type is tried, the best that works is chosen, and why another does not is kept.
func TestRequirement1ProbeByDoing(t *testing.T) {
	dev := gpu{simDevice(t, sim.Options{}), []device.HandleType{device.HandleFabric, device.HandlePosixFD, device.HandleCUDAIPC, device.HandleMemFD}}
	for name, peer := range map[string]func(context.Context) *exec.Cmd{
		"in one process": nil, "with a second": func(ctx context.Context) *exec.Cmd { return command(ctx, "probe") },
	} {
		found := share.Probe(t.Context(), dev, share.ProbeOptions{Peer: peer})
		if len(found) != 4 || found[3].Err != nil {
			t.Fatalf("%s: %v", name, found)
		}
		if err := found[0].Err; !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_PERMITTED (800)") {
			t.Errorf("%s: fabric: %v", name, err)
		}
		// Without a second process nobody knows of cuda-ipc; with one, it was tried.
		if err := found[2].Err; err == nil || errors.Is(err, errdefs.ErrNotSupported) != (peer != nil) {
			t.Errorf("%s: cuda-ipc: %v", name, err)
		}
		a, err := share.NewAllocator(dev, found)
		must(t, err)
		if a.Type() != device.HandleMemFD {
			t.Errorf("%s: chosen: %s", name, a.Type())
		}
		r, err := a.Alloc(100)
		must(t, err)
		s := serve(t, share.Options{})
		e, err := s.Export(dev, r)
		must(t, err)
		must(t, errors.Join(e.Close(), dev.Free(r)))
		if f := share.ProbeHost(t.Context(), dev, share.ProbeOptions{Peer: peer}); f.Err != nil {
			t.Errorf("%s: host memory: %v", name, f.Err)
		}
		if f := share.ProbeHost(t.Context(), nil, share.ProbeOptions{Peer: peer}); f.Err != nil {
			t.Errorf("%s: pageable memory: %v", name, f.Err)
		}
	}
	_, err := share.NewAllocator(dev, share.Probe(t.Context(), gpu{dev.Device, dev.types[:1]}, share.ProbeOptions{}))
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "fabric: ") {
		t.Errorf("nothing works: %v", err)
	}
	silent := share.ProbeOptions{Peer: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "true") }}
	if f := share.Probe(t.Context(), dev, silent)[3]; f.Err == nil || errors.Is(f.Err, errdefs.ErrNotSupported) {
		t.Errorf("a second process that says nothing: %v", f.Err)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	st, err := os.Lstat(path)
	must(t, err)
	return st.Mode().Perm()
}

// TestRequirement2Socket: the socket is this user's alone, whoever is not allowed is refused, and one that a dead exporter left is replaced.
func TestRequirement2Socket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	s := serve(t, share.Options{Dir: dir, Name: "a.sock"})
	if mode(t, dir) != 0o700 || mode(t, s.Socket()) != 0o600 {
		t.Errorf("modes %v, %v", mode(t, dir), mode(t, s.Socket()))
	}
	again, err := share.NewServer(share.Options{Dir: dir, Name: "a.sock"})
	must(t, err)
	if err := again.Start(t.Context()); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("a second server of that name: %v", err)
	}
	must(t, again.Close())
	must(t, s.Close())
	if _, err := os.Lstat(s.Socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}

	dead, _, _ := startExporter(t, dir, "a.sock", 4096)
	dead.kill()
	if _, err := os.Lstat(s.Socket()); err != nil {
		t.Fatalf("a killed exporter leaves its socket: %v", err)
	}
	next := serve(t, share.Options{Dir: dir, Name: "b.sock"})
	if _, err := os.Lstat(s.Socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dead exporter's socket is still there: %v", err)
	}
	must(t, next.Close())

	open := filepath.Join(t.TempDir(), "open")
	must(t, os.Mkdir(open, 0o750))
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	for name, o := range map[string]share.Options{
		"a directory of others": {Dir: open}, "a link": {Dir: link}, "a long path": {Dir: dir, Name: strings.Repeat("a", 200) + ".sock"},
		"a path for a name": {Dir: dir, Name: "../x.sock"},
	} {
		s, err := share.NewServer(o)
		must(t, err)
		if err := s.Start(t.Context()); err == nil {
			t.Errorf("%s: started", name)
		}
		must(t, s.Close())
	}
	for _, o := range []share.Options{{MaxImporters: -1}, {RequestTimeout: -1}, {Name: "x"}} {
		if _, err := share.NewServer(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("options %+v: %v", o, err)
		}
	}
}

// TestRequirement2Users: on either side, processes of users who are not on the list are refused, and told.
func TestRequirement2Users(t *testing.T) {
	dev := simDevice(t, sim.Options{})
	stranger := []int{os.Geteuid() + 1}
	closed := serve(t, share.Options{Allow: stranger})
	e, _ := exported(t, closed, dev, 4096)
	if _, err := importer(t, dev).Import(t.Context(), e.Descriptor()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a user who is not allowed imports: %v", err)
	}
	until(t, "the refusal is not counted", func() bool { return closed.Stats().Denied == 1 })

	e, _ = exported(t, serve(t, share.Options{}), dev, 4096)
	in, err := share.NewImporter(dev, share.ImportOptions{Allow: stranger})
	must(t, err)
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("an exporter who is not allowed is believed: %v", err)
	}
	must(t, in.Close())
}

func dialServer(t *testing.T, s *share.Server) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.Socket(), Net: "unixpacket"})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// TestRequirement2Malformed: whatever else is sent is refused and counted, files that come with it are closed, and who says nothing
// delays nobody.
func TestRequirement2Malformed(t *testing.T) {
	s := serve(t, share.Options{RequestTimeout: patience})
	dev := simDevice(t, sim.Options{})
	e, _ := exported(t, s, dev, 4096)
	for range 20 {
		dialServer(t, s) // and says nothing
	}
	until(t, "nobody is there", func() bool { return s.Stats().Importers == 20 })
	good := share.EncodeRequest(e.Descriptor().Identity)
	before := descriptors(t)
	var want int64
	for name, b := range map[string][]byte{
		"a byte": {1}, "half": good[:12], "too much": append(good[:24:24], 0), "much too much": make([]byte, 64<<10),
		"another version": append(append(good[:4:4], 9, 9), good[6:]...), "noise": []byte(strings.Repeat("x", len(good))),
	} {
		c := dialServer(t, s)
		_, err := c.Write(b)
		must(t, err)
		want++
		until(t, name+" is not refused", func() bool { return s.Stats().Malformed >= want })
		must(t, c.Close())
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	c := dialServer(t, s)
	_, _, err = c.WriteMsgUnix(good, unix.UnixRights(int(null.Fd()), int(null.Fd())), nil)
	must(t, err)
	want++
	until(t, "files are not refused", func() bool { return s.Stats().Malformed >= want })
	must(t, errors.Join(c.Close(), null.Close()))
	until(t, "files are left open", func() bool { return descriptors(t) <= before })

	i := take(t, importer(t, dev), e.Descriptor())
	must(t, i.Close())
	if st := s.Stats(); st.Malformed != want || st.Imports != 1 {
		t.Errorf("%+v", st)
	}
}

// TestRequirement2Bounds: connections are bounded, and one that does not ask ends.
func TestRequirement2Bounds(t *testing.T) {
	s := serve(t, share.Options{MaxImporters: 1, RequestTimeout: 300 * time.Millisecond})
	dev := simDevice(t, sim.Options{})
	e, _ := exported(t, s, dev, 4096)
	dialServer(t, s)
	until(t, "nobody is there", func() bool { return s.Stats().Importers == 1 })
	in := importer(t, dev)
	until(t, "the silent one is not let go", func() bool {
		i, err := in.Import(t.Context(), e.Descriptor())
		if err == nil {
			must(t, i.Close())
		} else if !errors.Is(err, errdefs.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestRequirement3Lifecycle: a server starts once, after it was made, and stops once, with importers attached, who are told.
func TestRequirement3Lifecycle(t *testing.T) {
	dev := simDevice(t, sim.Options{})
	r, err := dev.Alloc(4096, device.AllocOptions{Shareable: true})
	must(t, err)
	dir := t.TempDir()
	s, err := share.NewServer(share.Options{Dir: filepath.Join(dir, "s")})
	must(t, err)
	if all, err := os.ReadDir(dir); err != nil || len(all) > 0 {
		t.Errorf("a server that has not started made %v, %v", all, err)
	}
	if _, err := s.Export(dev, r); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("export before the start: %v", err)
	}
	must(t, s.Start(t.Context()))
	if err := s.Start(t.Context()); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("second start: %v", err)
	}
	e, err := s.Export(dev, r)
	must(t, err)
	in := importer(t, dev)
	i := take(t, in, e.Descriptor())
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	if err := i.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("the importer hears %v", err)
	}
	lost(t, i)
	must(t, errors.Join(i.Close(), i.Close(), e.Close(), e.Close(), s.Close(), dev.Free(r)))
	if err := s.Start(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("start after close: %v", err)
	}
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("import of a stopped exporter: %v", err)
	}
}

// TestRequirement4NothingIsLeftOpen: of many imports, and of imports that fail in every way, no file and no mapping is left.
func TestRequirement4NothingIsLeftOpen(t *testing.T) {
	n := 10_000
	if testing.Short() || raceEnabled {
		n = 500
	}
	faults := fault.New(1, fault.Every(sim.OpImport, 3).Fail(errdefs.ErrNoMemory))
	exporter, dev := simDevice(t, sim.Options{}), simDevice(t, sim.Options{Index: 1, Faults: faults})
	s := serve(t, share.Options{})
	e, _ := exported(t, s, exporter, 4096)
	h, err := share.AllocHost(exporter, 4096)
	must(t, err)
	eh, err := s.Export(h, h.Region())
	must(t, err)
	in := importer(t, dev)
	for _, d := range []share.Descriptor{e.Descriptor(), eh.Descriptor()} { // warm
		if i, err := in.Import(t.Context(), d); err == nil {
			must(t, i.Close())
		}
	}
	until(t, "imports stay", func() bool { return s.Stats().Importers == 0 })
	files, maps := descriptors(t), mappings(t)
	failed, wrong := 0, e.Descriptor()
	wrong.Offset, wrong.Length = 1, 4095
	for k := range n {
		d := e.Descriptor()
		switch k % 4 {
		case 1:
			d = eh.Descriptor()
		case 2:
			d = wrong
		}
		i, err := in.Import(t.Context(), d)
		if err != nil {
			failed++
			continue
		}
		must(t, i.Close())
	}
	until(t, "imports stay", func() bool { return s.Stats().Importers == 0 })
	until(t, "files or mappings are left", func() bool { return descriptors(t) <= files && mappings(t) <= maps })
	if failed < n/4 || failed == n {
		t.Errorf("%d of %d imports failed", failed, n)
	}
	must(t, errors.Join(eh.Close(), h.Close()))
}

// rogue answers every request with b and files.
func rogue(t *testing.T, b []byte, files ...int) share.Descriptor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		must(t, l.Close())
		serving.Wait()
	})
	serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 100))
			_, _, _ = c.WriteMsgUnix(b, unix.UnixRights(files...), nil)
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	})
	return share.Descriptor{Identity: share.Identity{1}, Type: device.HandleMemFD, PID: 1, Socket: path, Device: "sim-0", Bytes: 4096, Length: 4096}
}

// TestRequirement4RogueExporter: descriptors that come with whatever reply are closed.
func TestRequirement4RogueExporter(t *testing.T) {
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { must(t, null.Close()) }()
	fd := int(null.Fd())
	dev := simDevice(t, sim.Options{})
	ok := share.EncodeReply(device.Handle{Type: device.HandleMemFD, Bytes: 4096}, 4096)
	for name, answer := range map[string]struct {
		b     []byte
		files []int
	}{
		"no file": {ok, nil}, "two files": {ok, []int{fd, fd}}, "forty files": {ok, append(make([]int, 0, 40), repeat(fd, 40)...)},
		"a file of another sort": {ok, []int{fd}}, "nothing": {[]byte{0}, []int{fd}}, "too much": {append(ok[:len(ok):len(ok)], 1), []int{fd}},
		"cut off": {ok[:50], []int{fd}}, "another length": {share.EncodeReply(device.Handle{Type: device.HandleMemFD, Bytes: 1 << 62}, 4096), []int{fd}},
		"another type": {share.EncodeReply(device.Handle{Type: device.HandlePosixFD, Bytes: 4096}, 4096), []int{fd}},
	} {
		d := rogue(t, answer.b, answer.files...)
		in := importer(t, dev)
		before := descriptors(t)
		if _, err := in.Import(t.Context(), d); err == nil {
			t.Errorf("%s: imported", name)
		}
		until(t, name+": files are left open", func() bool { return descriptors(t) <= before })
	}
}

func repeat(v, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// TestRequirement4UnsealedFile: a file that its exporter could cut off is not mapped: who touched it would fault.
func TestRequirement4UnsealedFile(t *testing.T) {
	fd, err := unix.MemfdCreate("kvlane-test", unix.MFD_CLOEXEC)
	must(t, err)
	must(t, unix.Ftruncate(fd, 4096))
	d := rogue(t, share.EncodeReply(device.Handle{Type: device.HandleMemFD, Bytes: 4096}, 4096), fd)
	if _, err := importer(t, simDevice(t, sim.Options{})).Import(t.Context(), d); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("imported: %v", err)
	}
	must(t, unix.Close(fd))
}

// TestRequirement5Unwinds: of an import that fails at any step nothing is left, and the next one works. The calls of a driver are failed
// in turn in device/cuda.
func TestRequirement5Unwinds(t *testing.T) {
	exporter := simDevice(t, sim.Options{})
	s := serve(t, share.Options{})
	e, _ := exported(t, s, exporter, 4096)
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	eh, err := s.Export(h, h.Region())
	must(t, err)
	for op, d := range map[string]share.Descriptor{sim.OpImport: e.Descriptor(), sim.OpRegister: eh.Descriptor()} {
		dev := simDevice(t, sim.Options{Index: 1, Faults: fault.New(1, fault.Nth(op, 0).Fail(errdefs.ErrNoMemory), fault.Nth(sim.OpFree, 0).Fail(errdefs.ErrBusy))})
		in := importer(t, dev)
		before := mappings(t)
		if _, err := in.Import(t.Context(), d); !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("%s: %v", op, err)
		}
		if n := mappings(t); n != before {
			t.Errorf("%s: %d mappings are left", op, n-before)
		}
		i := take(t, in, d)
		if err := i.Close(); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("%s: close while the device does not free: %v", op, err)
		}
		must(t, i.Close())
	}
	must(t, errors.Join(eh.Close(), h.Close()))
}

// TestRequirement6Exports: what cannot be exported is an error at once; a region within an allocation keeps its offset, and its
// export is withdrawn by itself.
func TestRequirement6Exports(t *testing.T) {
	dev, s := simDevice(t, sim.Options{}), serve(t, share.Options{})
	plain, err := dev.Alloc(4096, device.AllocOptions{})
	must(t, err)
	pinned, err := dev.AllocHost(4096)
	must(t, err)
	for r, want := range map[*mem.Region]error{plain: errdefs.ErrNotSupported, pinned: errdefs.ErrInvalid, nil: errdefs.ErrInvalid} {
		if _, err := s.Export(dev, r); !errors.Is(err, want) {
			t.Errorf("export of %s: %v, want %v", r, err, want)
		}
	}
	must(t, errors.Join(dev.Free(plain), dev.Free(pinned)))

	whole, r := exported(t, s, dev, 10_000)
	inner, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 1000, Dev: r.Dev() + 5000})
	must(t, err)
	part, err := s.Export(dev, inner)
	must(t, err)
	d := part.Descriptor()
	if d.Offset != 5000 || d.Length != 1000 || d.Bytes != 10_000 || d.Identity == whole.Descriptor().Identity {
		t.Errorf("%+v", d)
	}
	in := importer(t, simDevice(t, sim.Options{Index: 1}))
	far := simDevice(t, sim.Options{Index: 2})
	all, some := take(t, importer(t, far), whole.Descriptor()), take(t, in, d)
	must(t, fill(dev, r, 1))
	must(t, fill(dev, inner, 2))
	if some.Region().Len() != 1000 {
		t.Errorf("%s", some.Region())
	}
	must(t, part.Close())
	if err := some.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("withdrawn: %v", err)
	}
	must(t, all.Region().Origin().Check())
	must(t, errors.Join(some.Close(), all.Close()))
}

// TestRequirement7Identity: an exporter that was killed and started anew at the same socket has other exports: what was imported
// before is lost, and what is imported anew by an old descriptor is not found.
func TestRequirement7Identity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	first, d, _ := startExporter(t, dir, "x.sock", 1<<20)
	first.do("fill 7")
	i := take(t, in, d)
	must(t, check(dev, i.Region(), 7))
	first.kill()
	second, d2, _ := startExporter(t, dir, "x.sock", 1<<20)
	second.do("fill 8")
	if d.Socket != d2.Socket || d.Identity == d2.Identity {
		t.Fatalf("%+v and %+v", d, d2)
	}
	if err := i.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("the exporter was killed: %v", err)
	}
	lost(t, i)
	if err := check(dev, i.Region(), 7); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("a lost region is read: %v", err)
	}
	if _, err := in.Import(t.Context(), d); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("the dead exporter's memory is found: %v", err)
	}
	i2 := take(t, in, d2)
	must(t, check(dev, i2.Region(), 8))
	second.do("withdraw")
	if err := i2.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("withdrawn: %v", err)
	}
	must(t, errors.Join(i.Close(), i2.Close()))
	second.end()
}

// TestRequirement7Cache: an export is mapped once, until its last import is closed, by however many at a time.
func TestRequirement7Cache(t *testing.T) {
	s := serve(t, share.Options{})
	e, _ := exported(t, s, simDevice(t, sim.Options{}), 4096)
	in := importer(t, simDevice(t, sim.Options{Index: 1}))
	var mu sync.Mutex
	var all []*share.Import
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			i, err := in.Import(context.Background(), e.Descriptor())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, i)
		})
	}
	wg.Wait()
	for _, i := range all {
		if i.Region().Dev() != all[0].Region().Dev() {
			t.Error("mapped twice")
		}
	}
	if st := s.Stats(); st.Importers != 1 || st.Imports != 1 {
		t.Errorf("%+v", st)
	}
	for k, i := range all {
		must(t, all[0].Region().Origin().Check())
		if k == 0 {
			if err := in.Close(); !errors.Is(err, errdefs.ErrBusy) {
				t.Errorf("close with imports: %v", err)
			}
		}
		must(t, i.Close())
	}
	until(t, "still imported", func() bool { return e.Importers() == 0 })
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("import by a closed importer: %v", err)
	}
}

// openStream opens a copy stream that the test closes.
func openStream(t *testing.T, dev device.Device, o streamcopy.Options) *streamcopy.Stream {
	t.Helper()
	s, err := streamcopy.Open(dev, o)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wait(t *testing.T, ticket *stream.Ticket) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return ticket.Wait(ctx)
}

// scattered copies every second block of src to every second of dst.
func scattered(dst, src *mem.Region, block int64) *mem.Batch {
	b := new(mem.Batch)
	for off := int64(0); off+block <= src.Len(); off += 2 * block {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: off, Len: block})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: off, Len: block})
	}
	return b
}

// TestRequirement8Copies: streams copy between another process's memory and the device's own by the paths that there are, both ways,
// and host memory of another process as they do their own.
func TestRequirement8Copies(t *testing.T) {
	const n = 1 << 20
	other, d, host := startExporter(t, filepath.Join(t.TempDir(), "s"), "x.sock", n)
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	i, ih := take(t, in, d), take(t, in, host)
	local, err := dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	for v, path := range []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel} {
		s := openStream(t, dev, streamcopy.Options{Path: path})
		other.do(fmt.Sprintf("fill %d", 10+v))
		ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}})
		must(t, err)
		must(t, wait(t, ticket))
		must(t, check(dev, local, byte(10+v)))
		must(t, fill(dev, local, byte(20+v)))
		for _, b := range []*mem.Batch{scattered(i.Region(), local, 4096), {Dst: []mem.Extent{mem.All(i.Region())}, Src: []mem.Extent{mem.All(local)}}} {
			ticket, err = s.Submit(t.Context(), b)
			must(t, err)
			must(t, wait(t, ticket))
		}
		other.do(fmt.Sprintf("check %d", 20+v))
		if ticket, err = s.Submit(t.Context(), scattered(ih.Region(), local, 4096)); err == nil {
			err = wait(t, ticket)
		}
		must(t, err)
		if b := ih.Region().Bytes(); b[0] != byte(20+v) || b[4096] != 0 && b[4096] != byte(19+v) {
			t.Errorf("host memory of the other process: %#x, %#x", b[0], b[4096])
		}
	}
	// Access is the importing device's alone.
	third := simDevice(t, sim.Options{})
	must(t, third.EnablePeer(dev))
	s := openStream(t, third, streamcopy.Options{})
	mine, err := third.Alloc(n, device.AllocOptions{})
	must(t, err)
	if _, err := s.Submit(t.Context(), scattered(mine, i.Region(), 4096)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("another device reaches what was imported: %v", err)
	}
	must(t, errors.Join(third.Free(mine), dev.Free(local), i.Close(), ih.Close()))
	other.end()
}

// TestRequirement8GoodOnlyIfLive: a copy whose export ends before it does is not reported good, though its bytes have moved; the
// stream goes on.
func TestRequirement8GoodOnlyIfLive(t *testing.T) {
	for _, how := range []string{"withdraw", "kill"} {
		t.Run(how, func(t *testing.T) {
			const n = 64 << 10
			other, d, _ := startExporter(t, filepath.Join(t.TempDir(), "s"), "x.sock", n)
			other.do("fill 3")
			faults := fault.New(1, fault.Nth(sim.OpWork, 1).Stall())
			dev := simDevice(t, sim.Options{Index: 1, Faults: faults})
			in := importer(t, dev)
			i := take(t, in, d)
			local, err := dev.Alloc(n, device.AllocOptions{})
			must(t, err)
			s := openStream(t, dev, streamcopy.Options{Path: stream.PathCopyEngine})
			batch := &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}}
			good, err := s.Submit(t.Context(), batch)
			must(t, err)
			must(t, wait(t, good))
			bad, err := s.Submit(t.Context(), batch)
			must(t, err)
			must(t, faults.Await(t.Context(), 1))
			if how == "kill" {
				other.kill()
			} else {
				other.do("withdraw")
			}
			faults.Release()
			if err := wait(t, bad); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("a copy that ended after the export: %v", err)
			}
			if c := bad.Completion(); c.Bytes != 0 {
				t.Errorf("completion %+v", c)
			}
			if _, err := s.Submit(t.Context(), batch); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("submit of a lost region: %v", err)
			}
			half := n / 2
			own, err := s.Submit(t.Context(), &mem.Batch{
				Dst: []mem.Extent{{Region: local, Len: int64(half)}}, Src: []mem.Extent{{Region: local, Off: int64(half), Len: int64(half)}},
			})
			must(t, err)
			must(t, wait(t, own))
			must(t, errors.Join(dev.Free(local), i.Close()))
		})
	}
}

// TestRequirement9TypedErrors: what is not there, and what makes no sense, is an error to decide by.
func TestRequirement9TypedErrors(t *testing.T) {
	dev := simDevice(t, sim.Options{})
	e, _ := exported(t, serve(t, share.Options{}), dev, 4096)
	in := importer(t, simDevice(t, sim.Options{Index: 1}))
	for name, tt := range map[string]struct {
		change func(d *share.Descriptor)
		want   error
	}{
		"an unknown identity":       {func(d *share.Descriptor) { d.Identity[0] ^= 1 }, errdefs.ErrNotFound},
		"an offset beyond the end":  {func(d *share.Descriptor) { d.Offset = 1 }, errdefs.ErrInvalid},
		"an offset that overflows":  {func(d *share.Descriptor) { d.Offset = 1<<63 - 1 }, errdefs.ErrInvalid},
		"a negative offset":         {func(d *share.Descriptor) { d.Offset = -1 }, errdefs.ErrInvalid},
		"no length":                 {func(d *share.Descriptor) { d.Length = 0 }, errdefs.ErrInvalid},
		"a length beyond the end":   {func(d *share.Descriptor) { d.Length = 4097 }, errdefs.ErrInvalid},
		"a larger allocation":       {func(d *share.Descriptor) { d.Bytes = 8192; d.Offset = 4096 }, errdefs.ErrMismatch},
		"another type":              {func(d *share.Descriptor) { d.Type = device.HandlePosixFD }, errdefs.ErrMismatch},
		"no type":                   {func(d *share.Descriptor) { d.Type = 0 }, errdefs.ErrInvalid},
		"no socket":                 {func(d *share.Descriptor) { d.Socket += "x" }, errdefs.ErrLost},
		"a relative path":           {func(d *share.Descriptor) { d.Socket = "x" }, errdefs.ErrInvalid},
		"a device of another sort":  {func(d *share.Descriptor) { d.Device = "a b" }, errdefs.ErrInvalid},
		"a GPU's handle of no GPU":  {func(d *share.Descriptor) { d.Device = ""; d.Type = device.HandleFabric }, errdefs.ErrInvalid},
		"a process that cannot be":  {func(d *share.Descriptor) { d.PID = 0 }, errdefs.ErrInvalid},
		"nothing that was exported": {func(d *share.Descriptor) { *d = share.Descriptor{} }, errdefs.ErrInvalid},
	} {
		d := e.Descriptor()
		tt.change(&d)
		if _, err := in.Import(t.Context(), d); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	i := take(t, in, e.Descriptor())
	for _, x := range []mem.Extent{{Region: i.Region(), Off: 1, Len: 4096}, {Region: i.Region(), Off: -1, Len: 1}, {Region: i.Region(), Off: 1<<63 - 1, Len: 1}} {
		if err := x.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("extent %d, %d: %v", x.Off, x.Len, err)
		}
	}
	must(t, i.Close())
	nobody, err := share.NewImporter(nil, share.ImportOptions{})
	must(t, err)
	if _, err := nobody.Import(t.Context(), e.Descriptor()); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("device memory without a device: %v", err)
	}
	must(t, nobody.Close())
	if _, err := share.NewImporter(nil, share.ImportOptions{Timeout: -1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a negative timeout: %v", err)
	}
}

// TestImportEnds: an exporter that does not answer is not waited for longer than was asked, and whoever waited for another import that
// gave up tries himself.
func TestImportEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "silent.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	d := share.Descriptor{Identity: share.Identity{1}, Type: device.HandleMemFD, PID: 1, Socket: path, Device: "sim-0", Bytes: 1, Length: 1}
	in, err := share.NewImporter(simDevice(t, sim.Options{}), share.ImportOptions{Timeout: 200 * time.Millisecond})
	must(t, err)
	if _, err := in.Import(t.Context(), d); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent exporter: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := in.Import(ctx, d); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a cancelled import: %v", err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	cancel()
	wg.Wait()
	must(t, in.Close())
}

// TestKilledPeers: exporters and importers die in turn; each side hears of it, and nothing is left.
func TestKilledPeers(t *testing.T) {
	n := 200
	if testing.Short() || raceEnabled {
		n = 10
	}
	dir := filepath.Join(t.TempDir(), "s")
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	s := serve(t, share.Options{Dir: dir})
	own, _ := exported(t, s, simDevice(t, sim.Options{}), 4096)
	line, err := json.Marshal(own.Descriptor())
	must(t, err)
	files, maps := descriptors(t), mappings(t)
	for k := range n / 2 {
		exporter, d, host := startExporter(t, dir, fmt.Sprintf("%d.sock", k), 4096)
		i, ih := take(t, in, d), take(t, in, host)
		exporter.kill()
		for _, each := range []*share.Import{i, ih} {
			lost(t, each)
			if err := each.Region().Origin().Lost(); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("the exporter was killed: %v", err)
			}
			must(t, each.Close())
		}
		imp := start(t, "import")
		_, err = fmt.Fprintf(imp.in, "%s\n", line)
		must(t, err)
		if got := imp.line(); got != "<nil>" {
			t.Fatal(got)
		}
		imp.kill()
		until(t, "a killed importer is still there", func() bool { return own.Importers() == 0 })
	}
	until(t, "files or mappings are left", func() bool { return descriptors(t) <= files && mappings(t) <= maps })
}
