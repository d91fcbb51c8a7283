package cuda

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

const stride = 3 * pageBytes // distance of the slots in these tests

// openShort opens a device whose registrations have at most four and a half pages.
func openShort(t *testing.T, f *fake) *Device {
	t.Helper()
	d := concrete(t, f.open())
	d.maxRegistration = 2*stride + pageBytes/2
	return d
}

func free(t *testing.T, d device.Device, r *mem.Region) {
	t.Helper()
	if err := d.Free(r); err != nil {
		t.Error(err)
	}
}

func TestSlotsAreRegisteredWhole(t *testing.T) {
	f := newFake(t)
	d := openShort(t, f)
	r, err := device.AllocSlots(d, 7, stride)
	if err != nil {
		t.Fatal(err)
	}
	base := uint64(r.CPU())
	want := map[uint64]uint64{base: 2 * stride, base + 2*stride: 2 * stride, base + 4*stride: 2 * stride, base + 6*stride: stride}
	if !maps.Equal(f.hosts, want) {
		t.Errorf("registrations are %v, want %v", f.hosts, want)
	}
	if n := f.count("cuMemHostGetDevicePointer_v2"); n != 4 {
		t.Errorf("%d device addresses were requested, want one for each registration", n)
	}
	for slot := range int64(7) {
		e := mem.Extent{Region: r, Off: slot * stride, Len: stride}
		if bytes, n := e.Registration(); bytes != stride || n != slot/2 {
			t.Errorf("slot %d has %d bytes in registration %d", slot, bytes, n)
		}
	}
	free(t, d, r)
	if len(f.hosts) != 0 {
		t.Errorf("%v are left", f.hosts)
	}
}

// A slot that is not a multiple of the page size cannot end a registration, because no page may be
// registered twice.
func TestSlotsOfUnevenLengthAreRegisteredByPages(t *testing.T) {
	f := newFake(t)
	d := openShort(t, f)
	r, err := d.AllocSlots(10, stride+1)
	if err != nil {
		t.Fatal(err)
	}
	for addr, n := range f.hosts {
		if addr%pageBytes != 0 || n > uint64(d.maxRegistration) {
			t.Errorf("%d bytes are registered at %#x", n, addr)
		}
	}
	free(t, d, r)
}

// If the driver gives registrations device addresses that are not contiguous, the memory is
// registered in one call, so that the region's one device address is right.
func TestScatteredRegistrationsBecomeOne(t *testing.T) {
	f := newFake(t)
	d := openShort(t, f)
	f.gap = 1 << 40
	r, err := d.AllocSlots(7, stride)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[uint64]uint64{uint64(r.CPU()): 7 * stride}; !maps.Equal(f.hosts, want) {
		t.Errorf("registrations are %v, want %v", f.hosts, want)
	}
	if e := mem.All(r); uint64(e.Dev()) != uint64(r.CPU())^fakeHost {
		t.Errorf("the device address is %#x", e.Dev())
	}
	free(t, d, r)
	f.maxHost = 2 * stride
	if _, err := d.AllocSlots(7, stride); !errors.Is(err, errdefs.ErrNoMemory) || !strings.Contains(err.Error(), "not contiguous") {
		t.Errorf("AllocSlots with both methods failing: %v, want ErrNoMemory with the reason", err)
	}
	if len(f.hosts) != 0 {
		t.Errorf("%v are left", f.hosts)
	}
}

// Copies and fills of any length, one by one, in batches and in rows, never cross two
// registrations: the fake checks each.
func TestCopiesDoNotCrossRegistrations(t *testing.T) {
	f := newFake(t)
	d := openShort(t, f)
	host, err := d.AllocSlots(20, stride)
	if err != nil {
		t.Fatal(err)
	}
	defer free(t, d, host)
	dev, err := d.Alloc(host.Len(), device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer free(t, d, dev)
	q, err := d.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := q.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	var moved uint64
	memcpy, rows, batch := d.api.MemcpyAsync, d.api.Memcpy2DAsync, d.api.MemcpyBatchAsync
	d.api.MemcpyAsync = func(to, from cuda.DevicePtr, n uint64, st cuda.Stream) cuda.Result {
		moved += n
		return memcpy(to, from, n, st)
	}
	d.api.Memcpy2DAsync = func(c *cuda.Memcpy2D, st cuda.Stream) cuda.Result {
		moved += c.WidthInBytes * c.Height
		return rows(c, st)
	}
	d.api.MemcpyBatchAsync = func(to, from []cuda.DevicePtr, bytes []uint64, st cuda.Stream) cuda.Result {
		for _, n := range bytes {
			moved += n
		}
		return batch(to, from, bytes, st)
	}
	moves := func(what string, want int64, err error) {
		t.Helper()
		if err != nil || moved != uint64(want) {
			t.Errorf("%s moves %d bytes, want %d: %v", what, moved, want, err)
		}
		moved = 0
	}
	all, there := mem.All(host), mem.All(dev)
	moves("a copy", all.Len, q.Copy(all, there))
	moves("a copy back", all.Len-7, q.Copy(there.Sub(7, all.Len-7), all.Sub(7, all.Len-7)))
	moves("a fill", 0, q.Fill(all, 1))
	b := q.(device.BatchCopier) //nolint:forcetypeassert,errcheck // the fake driver supports it
	var dst, src []mem.Extent
	// adjacent halves of slots, which may form rows
	for at := int64(0); at+stride/2 <= host.Len(); at += stride / 2 {
		dst, src = append(dst, there.Sub(at, stride/2)), append(src, all.Sub(at, stride/2))
	}
	moves("a batch of halves", host.Len(), b.CopyBatch(dst, src))
	dst, src = dst[:0], src[:0]
	for at := int64(0); at+64 <= host.Len(); at += 100 { // many rows
		dst, src = append(dst, all.Sub(at, 64)), append(src, there.Sub(at, 64))
	}
	moves("rows", int64(len(dst))*64, b.CopyBatch(dst, src))
	moves("a batch of all", all.Len, b.CopyBatch([]mem.Extent{all}, []mem.Extent{there}))
	moves("a batch within", all.Len/2, b.CopyBatch([]mem.Extent{all.Sub(0, all.Len/2)}, []mem.Extent{all.Sub(all.Len/2, all.Len/2)}))
	if f.count("cuMemcpy2DAsync_v2") == 0 {
		t.Error("no rows were copied")
	}
}

// A registration of 512 GiB fails on some drivers, and a shorter one does not. The memory is
// mapped, never touched.
func TestMemoryAboveOneRegistration(t *testing.T) {
	const bytes = 600 << 30
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	}()
	f := newFake(t)
	f.maxHost = 512<<30 - 1
	d := f.open()
	r, err := d.RegisterHost(b)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, n := range f.hosts {
		sum += n
	}
	if sum != bytes || r.Len() != bytes || len(f.hosts) != 10 {
		t.Errorf("%d bytes in %d registrations, want %d in 10", sum, len(f.hosts), int64(bytes))
	}
	free(t, d, r)
	// With slots of 24 MiB and 4 KiB, each registration has whole slots.
	const slot = 24<<20 + 4<<10
	if p := registrationBytes(b, slot, maxRegistration); p%slot != 0 || p > maxRegistration || p < maxRegistration-slot {
		t.Errorf("registrations are of %d bytes, which are slots of %d", p, slot)
	}
}

// Pinned memory is placed on the GPU's NUMA node before it is touched. If that fails, the device
// adds a note.
func TestPinnedMemoryIsPlacedOnTheNodeOfTheGPU(t *testing.T) {
	d := concrete(t, newFake(t).open())
	placed := -1
	answer := error(nil)
	d.prefer = func(b []byte, node int) error {
		core := make([]byte, len(b)/pageBytes)
		if err := mincore(b, core); err != nil {
			t.Error(err)
		}
		if slices.ContainsFunc(core, func(c byte) bool { return c&1 != 0 }) {
			t.Error("the memory was touched before it was placed")
		}
		placed = node
		return answer
	}
	alloc := func() {
		t.Helper()
		r, err := d.AllocSlots(4, stride)
		if err != nil {
			t.Fatal(err)
		}
		free(t, d, r)
	}
	d.info.NUMANode = -1
	alloc()
	if placed != -1 {
		t.Errorf("memory of a GPU whose node is not known is placed on node %d", placed)
	}
	d.info.NUMANode = 3
	alloc()
	if placed != 3 || len(d.Notes()) != 0 {
		t.Errorf("placed on node %d, notes %q", placed, d.Notes())
	}
	answer = unix.EPERM
	alloc()
	alloc()
	if notes := d.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "NUMA node 3") || !strings.Contains(notes[0], "not permitted") {
		t.Errorf("notes %q", notes)
	}
}

func mincore(b, core []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(hostmem.Addr(b)), uintptr(len(b)), uintptr(hostmem.Addr(core)))
	if errno != 0 {
		return errno
	}
	return nil
}

func TestSlotsThatCannotBe(t *testing.T) {
	d := newFake(t).open()
	for _, bad := range [][2]int64{{0, 1}, {1, 0}, {-1, -1}, {1 << 40, 1 << 40}} {
		if _, err := device.AllocSlots(d, bad[0], bad[1]); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d slots of %d bytes: %v, want ErrInvalid", bad[0], bad[1], err)
		}
		if _, err := concrete(t, d).AllocSlots(bad[0], bad[1]); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d slots of %d bytes of the device: %v, want ErrInvalid", bad[0], bad[1], err)
		}
	}
}
