package mem_test

import (
	"errors"
	"math"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// This package dereferences no address, so made-up addresses are sufficient.
const (
	cpuBase = mem.CPUAddr(0x10_0000)
	devBase = mem.DevAddr(0x7f00_0000_0000)
)

func newRegion(tb testing.TB, s mem.RegionSpec) *mem.Region {
	tb.Helper()
	r, err := mem.NewRegion(s)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func hostRegion(tb testing.TB, cpu mem.CPUAddr, n int64) *mem.Region {
	tb.Helper()
	return newRegion(tb, mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: n, CPU: cpu, Bytes: make([]byte, n)})
}

func pinnedRegion(tb testing.TB, cpu mem.CPUAddr, dev mem.DevAddr, device int, n int64) *mem.Region {
	tb.Helper()
	return newRegion(tb, mem.RegionSpec{Kind: mem.KindHostPinned, Device: device, Len: n, CPU: cpu, Dev: dev, Bytes: make([]byte, n)})
}

func deviceRegion(tb testing.TB, dev mem.DevAddr, device int, n int64) *mem.Region {
	tb.Helper()
	return newRegion(tb, mem.RegionSpec{Kind: mem.KindDevice, Device: device, Len: n, Dev: dev})
}

func TestNewRegionRefuses(t *testing.T) {
	b := make([]byte, 64)
	tests := map[string]mem.RegionSpec{
		"no length":                       {Kind: mem.KindDevice, Dev: devBase},
		"negative length":                 {Kind: mem.KindDevice, Dev: devBase, Len: -1},
		"no address":                      {Kind: mem.KindDevice, Len: 64},
		"CPU address without a view":      {Kind: mem.KindHost, CPU: cpuBase, Len: 64},
		"a view without CPU address":      {Kind: mem.KindDevice, Dev: devBase, Len: 64, Bytes: b},
		"a shorter view":                  {Kind: mem.KindHost, CPU: cpuBase, Len: 65, Bytes: b},
		"pageable with a device address":  {Kind: mem.KindHost, CPU: cpuBase, Dev: devBase, Len: 64, Bytes: b},
		"pinned without a device address": {Kind: mem.KindHostPinned, CPU: cpuBase, Len: 64, Bytes: b},
		"device with a CPU address":       {Kind: mem.KindDevice, CPU: cpuBase, Dev: devBase, Len: 64, Bytes: b},
		"device of no device":             {Kind: mem.KindDevice, Device: mem.NoDevice, Dev: devBase, Len: 64},
		"registrations of device memory":  {Kind: mem.KindDevice, Dev: devBase, Len: 64, RegistrationBytes: 32},
		"registrations of negative bytes": {Kind: mem.KindHostPinned, CPU: cpuBase, Dev: devBase, Len: 64, Bytes: b, RegistrationBytes: -1},
		"no kind":                         {CPU: cpuBase, Len: 64, Bytes: b},
		"wraps around the address space":  {Kind: mem.KindDevice, Dev: math.MaxUint64 - 62, Len: 64},
	}
	for name, spec := range tests {
		t.Run(name, func(t *testing.T) {
			if r, err := mem.NewRegion(spec); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("NewRegion = %v, %v; want ErrInvalid", r, err)
			}
		})
	}
}

func TestRegionKeepsBothAddresses(t *testing.T) {
	r := pinnedRegion(t, cpuBase, devBase, 1, 4096)
	if r.CPU() != cpuBase || r.Dev() != devBase || r.Len() != 4096 || r.Device() != 1 || r.Kind() != mem.KindHostPinned {
		t.Errorf("region is %s", r)
	}
	e := mem.All(r).Sub(1000, 96).Sub(10, 20)
	if e.CPU() != cpuBase+1010 || e.Dev() != devBase+1010 || e.Len != 20 {
		t.Errorf("extent is [%#x %#x +%d)", e.CPU(), e.Dev(), e.Len)
	}
	e.Bytes()[0] = 7
	if r.Bytes()[1010] != 7 || len(e.Bytes()) != 20 || cap(e.Bytes()) != 20 {
		t.Error("the extent's bytes are not its part of the region's")
	}
	if h := mem.All(hostRegion(t, cpuBase, 64)).Sub(8, 8); h.Dev() != 0 || h.CPU() != cpuBase+8 {
		t.Error("pageable memory must have no device address")
	}
	if d := mem.All(deviceRegion(t, devBase, 0, 64)).Sub(8, 8); d.CPU() != 0 || d.Bytes() != nil || d.Dev() != devBase+8 {
		t.Error("device memory must have no CPU address")
	}
}

func TestExtentInOneRegistration(t *testing.T) {
	one := mem.All(pinnedRegion(t, cpuBase, devBase, 0, 100))
	if bytes, n := one.Sub(7, 93).Registration(); bytes != 93 || n != 0 {
		t.Errorf("memory of one registration: %d bytes in %d", bytes, n)
	}
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHostPinned, CPU: cpuBase, Dev: devBase, Len: 100, Bytes: make([]byte, 100), RegistrationBytes: 40})
	if err != nil {
		t.Fatal(err)
	}
	all := mem.All(r)
	for _, tt := range []struct{ off, n, want, number int64 }{
		{0, 100, 40, 0}, {0, 40, 40, 0}, {39, 2, 1, 0}, {40, 60, 40, 1}, {41, 5, 5, 1}, {80, 20, 20, 2}, {99, 1, 1, 2}, {100, 0, 0, 2}, {40, 0, 0, 1},
	} {
		bytes, n := all.Sub(tt.off, tt.n).Registration()
		if bytes != tt.want || n != tt.number {
			t.Errorf("[%d, +%d): %d bytes in registration %d, want %d in %d", tt.off, tt.n, bytes, n, tt.want, tt.number)
		}
	}
}

func TestExtentValidate(t *testing.T) {
	r := deviceRegion(t, devBase, 0, 100)
	tests := []struct {
		off, n int64
		ok     bool
	}{
		{0, 100, true},
		{100, 0, true},
		{0, 0, true},
		{99, 1, true},
		{99, 2, false},
		{101, 0, false},
		{-1, 1, false},
		{0, -1, false},
		{0, 101, false},
		{math.MaxInt64, 1, false},
		{1, math.MaxInt64, false},
		{math.MaxInt64, math.MaxInt64, false},
		{math.MinInt64, math.MinInt64, false},
		{50, math.MinInt64, false},
	}
	for _, tt := range tests {
		err := mem.Extent{Region: r, Off: tt.off, Len: tt.n}.Validate()
		if (err == nil) != tt.ok || (err != nil && !errors.Is(err, errdefs.ErrInvalid)) {
			t.Errorf("[%d, +%d): %v, want ok %v", tt.off, tt.n, err, tt.ok)
		}
	}
	if err := (mem.Extent{}).Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an extent of no region: %v", err)
	}
}

func TestSubPanicsOutside(t *testing.T) {
	e := mem.Extent{Region: deviceRegion(t, devBase, 0, 100), Off: 10, Len: 50}
	for _, c := range [][2]int64{{-1, 1}, {0, 51}, {51, 0}, {1, math.MaxInt64}, {math.MaxInt64, 1}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Sub(%d, %d) of 50 bytes did not panic", c[0], c[1])
				}
			}()
			e.Sub(c[0], c[1])
		}()
	}
}

type anyFile struct{}

func (anyFile) Name() string { return "any" }

func TestFileRegion(t *testing.T) {
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindFile, Device: mem.NoDevice, Len: 100, File: anyFile{}})
	if err != nil {
		t.Fatal(err)
	}
	if e := mem.All(r); e.CPU() != 0 || e.Dev() != 0 || e.Bytes() != nil || r.File() != (anyFile{}) || r.Device() != mem.NoDevice || r.Kind().String() != "file" {
		t.Errorf("%s has an address", r)
	}
	if got := r.String(); got != "file region of 100 bytes (any)" {
		t.Errorf("String() returned %q", got)
	}
	for name, s := range map[string]mem.RegionSpec{
		"no file":                 {Kind: mem.KindFile, Device: mem.NoDevice, Len: 1},
		"a file with an address":  {Kind: mem.KindFile, Device: mem.NoDevice, Len: 1, File: anyFile{}, Dev: 1},
		"a file with bytes":       {Kind: mem.KindFile, Device: mem.NoDevice, Len: 1, File: anyFile{}, CPU: 1, Bytes: make([]byte, 1)},
		"a file of a device":      {Kind: mem.KindFile, Len: 1, File: anyFile{}},
		"a file without a length": {Kind: mem.KindFile, Device: mem.NoDevice, File: anyFile{}},
		"memory with a file":      {Kind: mem.KindDevice, Len: 1, Dev: 1, File: anyFile{}},
	} {
		if _, err := mem.NewRegion(s); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
