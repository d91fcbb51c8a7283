package devicetest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// sharer returns the device as a device.Sharer.
func sharer(t *testing.T, d device.Device) device.Sharer {
	t.Helper()
	s, ok := d.(device.Sharer)
	if !ok {
		testkit.Skip(t, "sharing", "this device shares no memory")
	}
	return s
}

// exported allocates memory for sharing by handles of this type, and exports it from off. If the
// machine does not support the type, ok is false.
func (h *harness) exported(t *testing.T, n, off int64, by device.HandleType) (r *mem.Region, out device.Handle, ok bool) {
	t.Helper()
	s := sharer(t, h.dev)
	r, err := s.Alloc(n, device.AllocOptions{Shareable: true, Handle: by})
	if errors.Is(err, errdefs.ErrNotSupported) {
		t.Logf("%s: %v", by, err)
		return nil, out, false
	}
	must(t, err)
	part, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: r.Device(), Len: n - off, Dev: r.Dev() + mem.DevAddr(off)})
	must(t, err)
	out, err = s.ExportMemory(part, by)
	if errors.Is(err, errdefs.ErrNotSupported) {
		t.Logf("%s: %v", by, err)
		must(t, s.Free(r))
		return nil, out, false
	}
	must(t, err)
	if out.Type != by || out.Bytes < n || out.Off != off || out.Device != s.Info().UUID {
		t.Errorf("%s: handle of %d bytes at %d, of device %s", by, out.Bytes, out.Off, out.Device)
	}
	if !by.IsFD() {
		return r, out, true
	}
	if flags, err := unix.FcntlInt(uintptr(out.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("%s: child processes inherit the descriptor: flags %#x, %v", by, flags, err)
	}
	return r, out, true
}

// imported imports memory on dev. A driver may refuse that in the exporter's own process.
func imported(t *testing.T, dev device.Device, in device.Handle) *mem.Region {
	t.Helper()
	r, err := sharer(t, dev).ImportMemory(in)
	if in.Type.IsFD() {
		must(t, unix.Close(in.FD)) // the mapping no longer needs it
	}
	if err != nil && in.Type == device.HandleCUDAIPC {
		t.Logf("%s in the process that exports: %v", in.Type, err)
		return nil
	}
	must(t, err)
	if r.Kind() != mem.KindDevice || r.Len() != in.Bytes || r.CPU() != 0 {
		t.Errorf("imported %s of %d bytes", r, in.Bytes)
	}
	return r
}

// testShareMemory checks that another device, or the same GPU opened again, reads the bytes that
// one device has written, and the reverse.
func testShareMemory(t *testing.T, h *harness) {
	const n, off = 1<<20 + 100, 12345
	worked := 0
	for _, by := range sharer(t, h.dev).HandleTypes() {
		r, handle, ok := h.exported(t, n, off, by)
		if !ok {
			continue
		}
		other := newPeerHarness(h.another(t))
		far := imported(t, other.dev, handle)
		if far != nil {
			worked++
			if p, ok := other.dev.(device.Peerer); ok && !p.Reaches(far) {
				t.Errorf("%s: the importer does not reach it", by)
			}
			q, theirs := h.queue(t), other.queue(t)
			want := make([]byte, n)
			h.random(want)
			h.put(t, q, r, want)
			diff(t, by.String()+" as imported", other.get(t, theirs, far, n), want)
			for name, move := range other.means(t, theirs) {
				h.random(want)
				local := other.device(t, n)
				other.put(t, theirs, local, want)
				must(t, move(extent(far, 1, n-1), extent(local, 1, n-1)))
				sync(t, theirs)
				diff(t, by.String()+" as its owner sees it, by "+name, h.get(t, q, r, n)[1:], want[1:])
			}
			must(t, other.dev.Free(far))
		}
		must(t, h.dev.Free(r))
	}
	if worked == 0 {
		testkit.Skip(t, "sharing", "no type of handle works")
	}
}

// testShareOutlives checks that freed memory stays intact for devices that map it, and that
// mappings are independent of each other.
func testShareOutlives(t *testing.T, h *harness) {
	const n = 4 << 20
	for _, by := range sharer(t, h.dev).HandleTypes() {
		if by == device.HandleCUDAIPC {
			continue // importers must release such memory before the exporter frees it
		}
		r, handle, ok := h.exported(t, n, 0, by)
		if !ok {
			continue
		}
		q := h.queue(t)
		want := make([]byte, n)
		h.random(want)
		h.put(t, q, r, want)
		second, err := sharer(t, h.dev).ImportMemory(handle)
		must(t, err)
		far := imported(t, h.dev, handle)
		must(t, h.dev.Free(r))
		must(t, h.dev.Free(second))
		diff(t, by.String()+" after its owner freed it", h.get(t, q, far, n), want)
		must(t, h.dev.Free(far))
		if err := h.dev.Free(far); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: a second free: %v", by, err)
		}
	}
}

// testShareRefuses checks that an impossible export or import returns an error at once and leaks
// nothing.
func testShareRefuses(t *testing.T, h *harness) {
	s := sharer(t, h.dev)
	pinned := h.pinned(t, 4096)
	for _, by := range append(device.HandleTypes(), 0, 99) {
		for name, r := range map[string]*mem.Region{"nothing": nil, "host memory": pinned, "memory of no device": memoryOf(t, s.Info().Index, nil)} {
			if out, err := s.ExportMemory(r, by); err == nil {
				t.Errorf("%s is exported as %s: %+v", name, by, out)
			}
		}
		null, err := os.Open(os.DevNull)
		must(t, err)
		for _, in := range []device.Handle{
			{Type: by, FD: -1, Bytes: 2 << 20},
			{Type: by, FD: int(null.Fd()), Bytes: 2 << 20},
			{Type: by, FD: int(null.Fd())},
			{Type: by, FD: int(null.Fd()), Bytes: -1},
			{Type: by, FD: int(null.Fd()), Bytes: 1 << 62},
		} {
			in.Data[3] = 77
			if r, err := s.ImportMemory(in); err == nil {
				t.Errorf("a handle of type %s and %d bytes of nothing is imported: %s", by, in.Bytes, r)
			}
		}
		must(t, null.Close())
	}
	// Memory that was allocated for one type has no handle of another.
	for _, by := range s.HandleTypes() {
		r, err := s.Alloc(4096, device.AllocOptions{Shareable: true, Handle: by})
		if errors.Is(err, errdefs.ErrNotSupported) {
			continue
		}
		must(t, err)
		for _, other := range device.HandleTypes() {
			if other == by {
				continue
			}
			if out, err := s.ExportMemory(r, other); !errors.Is(err, errdefs.ErrNotSupported) {
				t.Errorf("memory for %s is exported as %s: %+v, %v", by, other, out, err)
			}
		}
		if out, err := s.ExportMemory(r, by); err == nil && by.IsFD() {
			must(t, unix.Close(out.FD))
		}
		must(t, s.Free(r))
	}
}
