package devicetest

import (
	"errors"
	"os"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func testInfo(t *testing.T, h *harness) {
	i := h.dev.Info()
	if i.Driver == "" || i.Name == "" || i.UUID == "" || i.Index < 0 || i.MemoryBytes <= 0 || i.Multiprocs <= 0 || i.NUMANode < -1 {
		t.Errorf("info is incomplete: %+v", i)
	}
	if second := h.dev.Info(); second != i {
		t.Errorf("info changed from %+v to %+v", i, second)
	}
}

func testAlloc(t *testing.T, h *harness) {
	for _, shareable := range []bool{false, true} {
		for _, n := range []int64{1, 255, 4096, 4097, 1<<20 + 1} {
			r, err := h.dev.Alloc(n, device.AllocOptions{Shareable: shareable})
			if shareable && errors.Is(err, errdefs.ErrNotSupported) {
				testkit.Skip(t, "shareable", err.Error())
			}
			must(t, err)
			if r.Kind() != mem.KindDevice || r.Len() != n || r.Device() != h.dev.Info().Index || r.CPU() != 0 || r.Bytes() != nil {
				t.Errorf("%d bytes (shareable %v) came as %s", n, shareable, r)
			}
			if r.Dev() == 0 || r.Dev()%256 != 0 {
				t.Errorf("device address %#x is not aligned to 256", uint64(r.Dev()))
			}
			must(t, h.dev.Free(r))
		}
	}
}

func testAllocRefuses(t *testing.T, h *harness) {
	tests := []struct {
		bytes int64
		want  error
	}{{0, errdefs.ErrInvalid}, {-1, errdefs.ErrInvalid}, {1 << 50, errdefs.ErrNoMemory}}
	for _, tt := range tests {
		if r, err := h.dev.Alloc(tt.bytes, device.AllocOptions{}); r != nil || !errors.Is(err, tt.want) {
			t.Errorf("Alloc(%d) = %v, %v; want %v", tt.bytes, r, err, tt.want)
		}
		if r, err := h.dev.AllocHost(tt.bytes); r != nil || !errors.Is(err, tt.want) {
			t.Errorf("AllocHost(%d) = %v, %v; want %v", tt.bytes, r, err, tt.want)
		}
	}
	_, err := h.dev.Alloc(1<<50, device.AllocOptions{})
	var native *device.Error
	if !errors.As(err, &native) || native.Call == "" || native.Name == "" || native.Code == 0 {
		t.Errorf("the refusal carries no native error: %v", err)
	}
}

func testAllocHost(t *testing.T, h *harness) {
	for _, n := range []int64{1, 4096, 100_001} {
		r := h.pinned(t, n)
		if r.Kind() != mem.KindHostPinned || r.Len() != n || int64(len(r.Bytes())) != n || r.Dev() == 0 {
			t.Errorf("%d bytes came as %s", n, r)
		}
		if r.CPU() != hostmem.Addr(r.Bytes()) || uint64(r.CPU())%uint64(os.Getpagesize()) != 0 {
			t.Errorf("CPU address %#x for a view at %#x", uint64(r.CPU()), hostmem.Addr(r.Bytes()))
		}
		for i, v := range r.Bytes() {
			if v != 0 {
				t.Fatalf("byte %d of %d is %#x, not zero", i, n, v)
			}
		}
	}
}

func testRegisterHost(t *testing.T, h *harness) {
	const n = 64 << 10
	b, err := hostmem.Alloc(n)
	must(t, err)
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	h.random(b)
	r, err := h.dev.RegisterHost(b)
	must(t, err)
	if r.Kind() != mem.KindHostPinned || r.Len() != n || r.CPU() != hostmem.Addr(b) || r.Dev() == 0 || r.Device() != h.dev.Info().Index {
		t.Errorf("registered memory came as %s", r)
	}
	inside, err := hostmem.Alloc(2 * n)
	must(t, err)
	defer func() { must(t, hostmem.Free(inside)) }()
	part, err := h.dev.RegisterHost(inside[192 : 192+n])
	must(t, err)
	if (uint64(part.CPU())^uint64(part.Dev()))%uint64(os.Getpagesize()) != 0 {
		t.Errorf("the addresses of the %s have different offsets within a page", part)
	}
	must(t, h.dev.Free(part))
	if r2, err := h.dev.RegisterHost(b); err == nil {
		t.Errorf("the same memory was registered again, as %s", r2)
	}
	q, d := h.queue(t), h.device(t, n)
	must(t, q.Copy(mem.All(d), mem.All(r)))
	sync(t, q)
	diff(t, "device memory", h.get(t, q, d, n), b)

	must(t, h.dev.Free(r))
	b[0]++ // b is still mapped and owned by the test
	if err := h.dev.Free(r); err == nil {
		t.Error("unregistered twice")
	}
	second, err := h.dev.RegisterHost(b)
	must(t, err)
	must(t, h.dev.Free(second))

	if r, err := h.dev.RegisterHost(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("registering nothing = %v, %v", r, err)
	}
}

func testFreeRefuses(t *testing.T, h *harness) {
	other := h.another(t)
	d, err := h.dev.Alloc(4096, device.AllocOptions{})
	must(t, err)
	p, err := h.dev.AllocHost(4096)
	must(t, err)
	madeUp, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 4096, Dev: d.Dev()})
	must(t, err)
	for name, r := range map[string]*mem.Region{"nil": nil, "made up": madeUp} {
		if err := h.dev.Free(r); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("freeing a region that is %s: %v", name, err)
		}
	}
	for name, r := range map[string]*mem.Region{"device": d, "pinned": p} {
		if err := other.Free(r); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("freeing a %s region of another device: %v", name, err)
		}
		must(t, h.dev.Free(r))
		if err := h.dev.Free(r); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("freeing a %s region twice: %v", name, err)
		}
	}
}

func testDeviceClose(t *testing.T, h *harness) {
	d := h.open(t)
	if _, err := d.Alloc(4096, device.AllocOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := d.AllocHost(4096); err != nil {
		t.Error(err)
	}
	if _, err := d.OpenQueue(device.QueueOptions{}); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err == nil {
		t.Error("closing a device with a queue and two regions reported nothing")
	}
	if err := d.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	_, errAlloc := d.Alloc(4096, device.AllocOptions{})
	_, errHost := d.AllocHost(4096)
	_, errQueue := d.OpenQueue(device.QueueOptions{})
	for name, err := range map[string]error{"Alloc": errAlloc, "AllocHost": errHost, "OpenQueue": errQueue} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("%s on a closed device: %v", name, err)
		}
	}
	// The other device, which may be the same GPU, keeps working.
	q, r := h.queue(t), h.device(t, 4096)
	must(t, q.Fill(mem.All(r), 1))
	sync(t, q)
}
