package hostmem_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// AllocLarge requests large pages if the kernel supports them.
func TestAllocLarge(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		testkit.Skip(t, "huge-pages", err.Error())
	}
	b, err := hostmem.AllocLarge(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, of, there := strings.Cut(string(text), fmt.Sprintf("\n%x-", uint64(hostmem.Addr(b))))
	_, flags, _ := strings.Cut(of, "\nVmFlags:")
	if flags, _, _ = strings.Cut(flags, "\n"); !there || !slices.Contains(strings.Fields(flags), "hg") {
		t.Errorf("mapping %#x has flags %q", uint64(hostmem.Addr(b)), flags)
	}
	if err := hostmem.Free(b); err != nil {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAllocIsZeroedAlignedAndCounted(t *testing.T) {
	for _, n := range []int64{1, 4095, 4096, 4097, 3 << 20} {
		before := leak.Live()[leak.HostBytes.String()]
		b, err := hostmem.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) != n {
			t.Errorf("%d bytes for %d requested", len(b), n)
		}
		if a := hostmem.Addr(b); a == 0 || uint64(a)%uint64(os.Getpagesize()) != 0 {
			t.Errorf("address %#x is not page aligned", a)
		}
		for i, v := range b {
			if v != 0 {
				t.Fatalf("byte %d is %#x", i, v)
			}
		}
		b[n-1] = 1
		if got := leak.Live()[leak.HostBytes.String()] - before; got != n {
			t.Errorf("%d bytes counted, want %d", got, n)
		}
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
		if got := leak.Live()[leak.HostBytes.String()]; got != before {
			t.Errorf("%d bytes counted after free, want %d", got, before)
		}
	}
}

func TestAllocRefuses(t *testing.T) {
	tests := []struct {
		bytes int64
		want  error
	}{
		{0, errdefs.ErrInvalid},
		{-1, errdefs.ErrInvalid},
		{math.MaxInt64, errdefs.ErrNoMemory},
		{1 << 60, errdefs.ErrNoMemory},
	}
	for _, tt := range tests {
		if b, err := hostmem.Alloc(tt.bytes); !errors.Is(err, tt.want) || b != nil {
			t.Errorf("Alloc(%d) = %d bytes, %v; want %v", tt.bytes, len(b), err, tt.want)
		}
	}
}

func TestFreeRefusesWhatAllocDidNotReturn(t *testing.T) {
	b, err := hostmem.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"nil": nil, "Go memory": make([]byte, 8192), "a part": b[4096:], "a prefix": b[:4096:4096]} {
		if err := hostmem.Free(bad); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("free of %s: %v, want %v", name, err, errdefs.ErrInvalid)
		}
	}
	if err := hostmem.Free(b); err != nil {
		t.Fatal(err)
	}
	if err := hostmem.Free(b); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("second free: %v, want %v", err, errdefs.ErrInvalid)
	}
}

func TestRegion(t *testing.T) {
	b, err := hostmem.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind() != mem.KindHost || r.Device() != mem.NoDevice || r.Len() != 100 || r.Dev() != 0 || r.CPU() != hostmem.Addr(b) {
		t.Errorf("region is %v", r)
	}
	r.Bytes()[7] = 42
	if b[7] != 42 {
		t.Error("the region refers to other memory")
	}
	if _, err := hostmem.Region(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("region over nothing: %v", err)
	}
}

// The kernel stores the preferred node of a mapping.
func TestPrefer(t *testing.T) {
	b, err := hostmem.Alloc(8 << 12)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	}()
	for _, node := range []int{-1, 1024, 1 << 40} {
		if err := hostmem.Prefer(b, node); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("node %d: %v, want ErrInvalid", node, err)
		}
	}
	if err := hostmem.Prefer(nil, 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no memory: %v, want ErrInvalid", err)
	}
	if err := hostmem.Prefer(b, 0); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		testkit.Skip(t, "numa", err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
	if err := hostmem.Prefer(b, 1023); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "NUMA node 1023") {
		t.Errorf("a node that no machine has: %v, want EINVAL with the number", err)
	}
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		testkit.Skip(t, "numa", err.Error())
	}
	if want := fmt.Sprintf("%x prefer:0", uint64(hostmem.Addr(b))); !strings.Contains(string(maps), want) {
		t.Errorf("/proc/self/numa_maps lacks %q", want)
	}
}

func TestWords(t *testing.T) {
	b, err := hostmem.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	hostmem.StoreUint64(b[8:], 0x0102030405060708)
	if got := hostmem.LoadUint64(b[8:]); got != 0x0102030405060708 {
		t.Errorf("word is %#x", got)
	}
	if b[7] != 0 || b[16] != 0 {
		t.Error("the store touched its neighbours")
	}
	for name, bad := range map[string][]byte{"short": b[:7], "misaligned": b[1:]} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a %s word did not panic", name)
				}
			}()
			hostmem.LoadUint64(bad)
		}()
	}
}

func TestOnGoHeap(t *testing.T) {
	b, err := hostmem.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	if hostmem.OnGoHeap(b) {
		t.Error("mapped memory is taken for the Go heap")
	}
	if err := hostmem.Free(b); err != nil {
		t.Fatal(err)
	}
	if !hostmem.OnGoHeap(make([]byte, 1<<20)) {
		t.Error("a slice of the Go heap is not recognised")
	}
}

func TestBytesAreTheMemory(t *testing.T) {
	words := []struct{ a, b uint32 }{{1, 2}, {3, 0x01020304}}
	b := hostmem.Bytes(words)
	if want := []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 3, 2, 1}; !bytes.Equal(b, want) {
		t.Errorf("%v, want %v", b, want)
	}
	b[4] = 7
	if words[0].b != 7 {
		t.Error("the bytes are a copy")
	}
	if n := len(hostmem.Bytes([]uint64(nil))); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
}

func TestViewIsTheMemory(t *testing.T) {
	b, err := hostmem.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	v := hostmem.View(hostmem.Addr(b)+5, 100)
	v[3] = 9
	if len(v) != 100 || b[8] != 9 {
		t.Errorf("%d bytes of the wrong memory", len(v))
	}
	gone := hostmem.View(hostmem.Addr(b), len(b))
	if err := hostmem.Free(b); err != nil {
		t.Fatal(err)
	}
	var at mem.CPUAddr
	say := func(a mem.CPUAddr) error { at = a; return errdefs.ErrBroken }
	err = hostmem.Guard(func() error { copy(gone, []byte{1}); return nil }, say)
	if !errors.Is(err, errdefs.ErrBroken) || at != hostmem.Addr(gone) {
		t.Errorf("%v of address %#x", err, at)
	}
	if err := hostmem.Guard(func() error { return errdefs.ErrBusy }, say); !errors.Is(err, errdefs.ErrBusy) {
		t.Error(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic of another sort was kept")
			}
		}()
		_ = hostmem.Guard(func() error { panic("a bug") }, say)
	}()
}
