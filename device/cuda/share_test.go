package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// TestExportMemory checks the handle types of an export. The device's own memory has only the type
// that it was allocated for, and memory of the host program has all types that the driver supports.
// The export of a sub-region covers the whole allocation and keeps the offset.
func TestExportMemory(t *testing.T) {
	f := newFake(t)
	d := concrete(t, f.open())
	types := []device.HandleType{device.HandleFabric, device.HandlePosixFD, device.HandleCUDAIPC}
	for _, made := range types {
		r, err := d.Alloc(1<<20, device.AllocOptions{Shareable: true, Handle: made})
		must(t, err)
		part, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 100, Dev: r.Dev() + 5000})
		must(t, err)
		for _, by := range append(types, device.HandleMemFD) {
			h, err := d.ExportMemory(part, by)
			if by != made {
				if !errors.Is(err, errdefs.ErrNotSupported) {
					t.Errorf("memory for %s is exported as %s: %v", made, by, err)
				}
				continue
			}
			must(t, err)
			if h.Type != by || h.Off != 5000 || h.Bytes != fakeGrain || h.Device != fakeUUID || by.IsFD() != (h.FD == fakeFD) {
				t.Errorf("handle %+v", h)
			}
		}
		must(t, d.Free(r))
	}
	if _, err := d.Alloc(1, device.AllocOptions{Shareable: true, Handle: device.HandleMemFD}); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("memory of a file: %v", err)
	}
	f.clean()
}

// TestExportForeignMemory checks that memory of the host program is found by its address, and that
// memory of several allocations is refused.
func TestExportForeignMemory(t *testing.T) {
	f := newFake(t)
	d := concrete(t, f.open())
	foreign := func(off mem.DevAddr, n int64) *mem.Region {
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: 1<<40 + off})
		must(t, err)
		return r
	}
	for _, by := range d.HandleTypes() {
		before := f.left()
		h, err := d.ExportMemory(foreign(4096, 100), by)
		must(t, err)
		if h.Off != 4096 || h.Bytes != fakeGrain {
			t.Errorf("%s: %+v", by, h)
		}
		if _, err := d.ExportMemory(foreign(4096, fakeGrain), by); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "several") {
			t.Errorf("%s of several allocations: %v", by, err)
		}
		for n := 0; ; n++ {
			f.failNth(n, cuda.ErrorOutOfMemory)
			_, err := d.ExportMemory(foreign(0, 1), by)
			failed := f.failedCall()
			f.failNth(-1, cuda.Success)
			if failed == "" {
				must(t, err)
				break
			}
			if failed != "cuMemRelease" { // the handle is already exported by then
				namesCall(t, failed, err)
			} else {
				f.set(func() { clear(f.alive["handle"]) })
			}
		}
		sameCounts(t, before, f.left())
	}
	pinned, err := d.AllocHost(4096)
	must(t, err)
	for _, r := range []*mem.Region{nil, pinned, memoryOfDevice(t, 1)} {
		if _, err := d.ExportMemory(r, device.HandlePosixFD); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s is exported: %v", r, err)
		}
	}
	must(t, d.Free(pinned))
	f.clean()
}

func memoryOfDevice(t *testing.T, index int) *mem.Region {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: index, Len: 1, Dev: 4096})
	must(t, err)
	return r
}

// TestImportMemory checks that only the importing device can access imported memory, with earlier
// and later peers. It cannot be exported again. Free unmaps it, then releases it, then frees the
// address.
func TestImportMemory(t *testing.T) {
	f := newFake(t)
	a, b := fakePeers(t, f)
	opened := make(map[cuda.DevicePtr][]cuda.DeviceID)
	access := a.api.MemSetAccess
	a.api.MemSetAccess = func(p cuda.DevicePtr, bytes uint64, dev cuda.DeviceID) cuda.Result {
		opened[p] = append(opened[p], dev)
		return access(p, bytes, dev)
	}
	for _, by := range a.HandleTypes() {
		r, err := a.ImportMemory(device.Handle{Type: by, Device: fakeUUID, FD: fakeFD, Bytes: fakeGrain})
		must(t, err)
		if !a.Reaches(r) {
			t.Errorf("%s: the peer cannot reach the memory", by)
		}
		must(t, b.EnablePeer(a)) // gives the peer access to existing memory
		part, err := mem.NewRegion(mem.RegionSpec{
			Kind: mem.KindDevice, Device: r.Device(), Len: 1, Dev: r.Dev() + 1, Origin: mem.NewOrigin(func() error { return nil }),
		})
		must(t, err)
		if !a.Reaches(part) || b.Reaches(part) {
			t.Errorf("%s: a part is reached by the importer %v, by another %v", by, a.Reaches(part), b.Reaches(part))
		}
		if _, err := a.ExportMemory(r, by); !errors.Is(err, errdefs.ErrNotSupported) && !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: exported again: %v", by, err)
		}
		if at := opened[cuda.DevicePtr(r.Dev())]; by != device.HandleCUDAIPC && !slices.Equal(at, []cuda.DeviceID{0}) {
			t.Errorf("%s: open to devices %v", by, at)
		}
		f.set(func() { f.calls = nil })
		must(t, a.Free(r))
		if a.Reaches(part) {
			t.Errorf("%s: reached after it was freed", by)
		}
		undone := slices.DeleteFunc(slices.Clone(f.calls), func(call string) bool {
			return !strings.HasPrefix(call, "cuMem") && !strings.HasPrefix(call, "cuIpc")
		})
		want := []string{"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}
		if by == device.HandleCUDAIPC {
			want = []string{"cuIpcCloseMemHandle"}
		}
		if !slices.Equal(undone, want) {
			t.Errorf("%s: undone by %v", by, undone)
		}
	}
	elsewhere, err := a.ImportMemory(device.Handle{Type: device.HandlePosixFD, Device: "GPU-none", FD: fakeFD, Bytes: fakeGrain})
	must(t, err)
	if elsewhere.Device() != device.DeviceElsewhere || !a.Reaches(elsewhere) {
		t.Errorf("%s", elsewhere)
	}
	must(t, a.Free(elsewhere))
	if _, err := a.ImportMemory(device.Handle{Type: device.HandleMemFD, Bytes: 1}); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a file is imported: %v", err)
	}
	f.clean()
}

// TestDefectImportIsAsLongAsItsExporterSays checks the length that an exporter claims. Otherwise
// copies could access addresses behind the memory.
func TestDefectImportIsAsLongAsItsExporterSays(t *testing.T) {
	f := newFake(t)
	d := f.open()
	_, err := concrete(t, d).ImportMemory(device.Handle{Type: device.HandleCUDAIPC, Device: fakeUUID, Bytes: fakeGrain + 1})
	if !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("imported: %v", err)
	}
	f.clean()
}

// sharing exports every file as fakeFD. Foreign memory is a unit of fakeGrain.
func (f *fake) sharing(a *cuda.API) {
	a.MemGetAddressRange = func(p cuda.DevicePtr) (cuda.DevicePtr, uint64, cuda.Result) {
		f.mu.Lock()
		mapping := f.alive["IPC mapping"][uint64(p)]
		f.mu.Unlock()
		if mapping {
			return p, fakeGrain, f.enter("cuMemGetAddressRange_v2", contextRelaxed)
		}
		return p &^ (fakeGrain - 1), fakeGrain, f.enter("cuMemGetAddressRange_v2", contextRelaxed)
	}
	a.MemRetainHandle = func(cuda.DevicePtr) (cuda.MemHandle, cuda.Result) {
		h, r := f.made("handle", f.enter("cuMemRetainAllocationHandle", contextRelaxed))
		return cuda.MemHandle(h), r
	}
	a.MemExportFD = func(cuda.MemHandle) (int, cuda.Result) {
		return fakeFD, f.enter("cuMemExportToShareableHandle", contextRelaxed)
	}
	a.MemExportFabric = func(h cuda.MemHandle) ([cuda.HandleBytes]byte, cuda.Result) {
		return [cuda.HandleBytes]byte{8, byte(h >> 16)}, f.enter("cuMemExportToShareableHandle", contextRelaxed)
	}
	imported := func() (cuda.MemHandle, cuda.Result) {
		h, r := f.made("handle", f.enter("cuMemImportFromShareableHandle", contextRelaxed))
		return cuda.MemHandle(h), r
	}
	a.MemImportFD = func(fd int) (cuda.MemHandle, cuda.Result) {
		if fd != fakeFD {
			return 0, cuda.ErrorUnknown
		}
		return imported()
	}
	a.MemImportFabric = func(*[cuda.HandleBytes]byte) (cuda.MemHandle, cuda.Result) { return imported() }
	a.IPCGetMemHandle = func(p cuda.DevicePtr) ([cuda.HandleBytes]byte, cuda.Result) {
		return [cuda.HandleBytes]byte{9, byte(p >> 16)}, f.enter("cuIpcGetMemHandle", contextRelaxed)
	}
	a.IPCOpenMemHandle = func(*[cuda.HandleBytes]byte) (cuda.DevicePtr, cuda.Result) {
		p, r := f.made("IPC mapping", f.enter("cuIpcOpenMemHandle_v2", contextRelaxed))
		return cuda.DevicePtr(p), r
	}
	a.IPCCloseMemHandle = func(p cuda.DevicePtr) cuda.Result {
		return f.gone("IPC mapping", uint64(p), f.enter("cuIpcCloseMemHandle", contextRelaxed))
	}
}

// For an invalid descriptor the driver returns an unknown error, which was taken for the loss of
// the context.
func TestDefectForeignDescriptorBreaksTheDevice(t *testing.T) {
	a, _ := fakePeers(t, newFake(t))
	if _, err := a.ImportMemory(device.Handle{Type: device.HandlePosixFD, Device: fakeUUID, FD: -1, Bytes: fakeGrain}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("import of no descriptor: %v", err)
	}
	r, err := a.ImportMemory(device.Handle{Type: device.HandlePosixFD, Device: fakeUUID, FD: fakeFD, Bytes: fakeGrain})
	must(t, err)
	must(t, a.Free(r))
}
