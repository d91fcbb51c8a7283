package share_test

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
)

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	st, err := os.Lstat(path)
	must(t, err)
	return st.Mode().Perm()
}

// TestRequirement2Socket checks that only this user can access the socket and that the socket of a
// dead exporter is replaced.
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
	must(t, again.Close(t.Context()))
	must(t, s.Close(t.Context()))
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
	must(t, next.Close(t.Context()))

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
		must(t, s.Close(t.Context()))
	}
	for _, o := range []share.Options{{MaxImporters: -1}, {RequestTimeout: -1}, {Name: "x"}} {
		if _, err := share.NewServer(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("options %+v: %v", o, err)
		}
	}
}

// TestRequirement2Users checks that both sides refuse processes of users that are not allowed, with
// the reason.
func TestRequirement2Users(t *testing.T) {
	dev := simDevice(t, sim.Options{})
	stranger := []int{os.Geteuid() + 1}
	closed := serve(t, share.Options{Allow: stranger})
	e, _ := exported(t, closed, dev, 4096)
	if _, err := importer(t, dev).Import(t.Context(), e.Descriptor()); !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("a user that is not allowed imports: %v", err)
	}
	until(t, "the refusal is not counted", func() bool { return closed.Stats().Denied == 1 })

	e, _ = exported(t, serve(t, share.Options{}), dev, 4096)
	in, err := share.NewImporter(dev, share.ImportOptions{Allow: stranger})
	must(t, err)
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("an exporter that is not allowed is accepted: %v", err)
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

// TestRequirement2Malformed checks that malformed messages are refused and counted, and that files
// in them are closed. A silent connection must not delay others.
func TestRequirement2Malformed(t *testing.T) {
	s := serve(t, share.Options{RequestTimeout: patience})
	dev := simDevice(t, sim.Options{})
	e, _ := exported(t, s, dev, 4096)
	before := descriptors(t)
	silent := make([]*net.UnixConn, 20)
	for i := range silent {
		silent[i] = dialServer(t, s)
	}
	until(t, "no importer is connected", func() bool { return s.Stats().Importers == len(silent) })
	good := share.EncodeRequest(e.Descriptor().Identity)
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

	i := take(t, importer(t, dev), e.Descriptor())
	must(t, i.Close())
	if st := s.Stats(); st.Malformed != want || st.Imports != 1 {
		t.Errorf("%+v", st)
	}
	for _, c := range silent {
		must(t, c.Close())
	}
	until(t, "files are left open", func() bool { return descriptors(t) <= before })
}

// TestRequirement2Bounds checks the limit on connections and the time limit of a request.
func TestRequirement2Bounds(t *testing.T) {
	s := serve(t, share.Options{MaxImporters: 1, RequestTimeout: 300 * time.Millisecond})
	dev := simDevice(t, sim.Options{})
	e, _ := exported(t, s, dev, 4096)
	dialServer(t, s)
	until(t, "no importer is connected", func() bool { return s.Stats().Importers == 1 })
	in := importer(t, dev)
	until(t, "the silent connection stays", func() bool {
		i, err := in.Import(t.Context(), e.Descriptor())
		if err == nil {
			must(t, i.Close())
		} else if !errors.Is(err, errdefs.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestDefectEndIsReportedBeforeTheLastPacket checks that the last packet is read even if its sender
// closed with unread packets, or closes during the read.
func TestDefectEndIsReportedBeforeTheLastPacket(t *testing.T) {
	near, far, err := share.Ends()
	must(t, err)
	_, err = near.Write([]byte("not read"))
	must(t, err)
	_, err = far.Write([]byte("the last"))
	must(t, errors.Join(err, far.Close()))
	b, tries := make([]byte, 100), 0
	n, err := share.ReadPacket(func() (int, error) {
		tries++
		return near.Read(b)
	})
	if err != nil || string(b[:n]) != "the last" || tries != 2 {
		t.Errorf("%q, %v after %d tries", b[:n], err, tries)
	}
	must(t, near.Close())

	for name, first := range map[string][]error{
		"a packet": {nil}, "the end": {io.EOF, nil}, "a reset": {unix.ECONNRESET, nil}, "both": {io.EOF, unix.ECONNRESET, nil},
	} {
		tries := 0
		n, err := share.ReadPacket(func() (int, error) {
			tries++
			if first[tries-1] != nil {
				return 0, first[tries-1]
			}
			return 8, nil
		})
		if n != 8 || err != nil || tries != len(first) {
			t.Errorf("%s: %d, %v after %d tries", name, n, err, tries)
		}
	}
	for _, last := range []error{io.EOF, unix.ECONNRESET, os.ErrDeadlineExceeded} {
		if _, err := share.ReadPacket(func() (int, error) { return 0, last }); !errors.Is(err, last) {
			t.Errorf("error %v is described as %v", last, err)
		}
	}
}

// TestRequirement3Lifecycle checks that a server can be started once and stopped once, and that it
// notifies its importers of the end.
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
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	if err := i.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("the importer gets %v", err)
	}
	lost(t, i)
	must(t, errors.Join(i.Close(), i.Close(), withdraw(e), withdraw(e), within(s.Close), dev.Free(r)))
	if err := s.Start(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("start after close: %v", err)
	}
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("import of a stopped exporter: %v", err)
	}
}
