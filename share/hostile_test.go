package share_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// rogue starts an exporter that answers every request with the bytes b and the given files.
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

// TestRequirement4RogueExporter checks that the file descriptors of any reply are closed.
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

// TestRequirement4UnsealedFile checks that a file that its exporter could truncate is not mapped,
// because an access after that would fault.
func TestRequirement4UnsealedFile(t *testing.T) {
	fd, err := unix.MemfdCreate("kvlane-test", unix.MFD_CLOEXEC)
	must(t, err)
	must(t, unix.Ftruncate(fd, 4096))
	d := rogue(t, share.EncodeReply(device.Handle{Type: device.HandleMemFD, Bytes: 4096}, 4096), fd)
	i, err := importer(t, simDevice(t, sim.Options{})).Import(t.Context(), d)
	if !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("imported: %v", err)
	}
	if err == nil {
		must(t, i.Close()) // otherwise the rogue waits
	}
	must(t, unix.Close(fd))
}

// TestRequirement9TypedErrors checks the errors of missing exports and malformed descriptors.
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

// TestImportEnds checks the time limit of an exporter's reply. If an import waits for a concurrent
// import that is canceled, it must connect itself.
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

// TestDefectAbandonedImportIsWaitedForForever checks that an importer sends the end request if its
// context ends before the reply. Otherwise an exporter that has granted the import would wait until
// the process dies.
func TestDefectAbandonedImportIsWaitedForForever(t *testing.T) {
	path := filepath.Join(t.TempDir(), "late.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	d := share.Descriptor{Identity: share.Identity{1}, Type: device.HandleMemFD, PID: 1, Socket: path, Device: "sim-0", Bytes: 1, Length: 1}
	in := importer(t, simDevice(t, sim.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	imported := make(chan error, 1)
	go func() {
		_, err := in.Import(ctx, d)
		imported <- err
	}()
	c, err := l.AcceptUnix()
	must(t, err)
	defer func() { must(t, c.Close()) }()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	b := make([]byte, 200)
	_, err = c.Read(b)
	must(t, err)
	cancel()
	n, err := c.Read(b)
	if err != nil || !bytes.Equal(b[:n], share.EncodeEnd(d.Identity)) {
		t.Errorf("the exporter received %q at the end: %v", b[:n], err)
	}
	if err := <-imported; !errors.Is(err, context.Canceled) {
		t.Errorf("the import: %v", err)
	}
}
