package mem

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// Kind says what sort of memory a Region spans.
type Kind uint8

// The kinds of Region.
const (
	KindHost       Kind = iota + 1 // pageable host memory: a CPU address, no device address
	KindHostPinned                 // page-locked host memory: a CPU address and a device address
	KindDevice                     // GPU memory: a device address, no CPU address
)

// String returns the kind's name as it appears in errors and metrics.
func (k Kind) String() string {
	switch k {
	case KindHost:
		return "host"
	case KindHostPinned:
		return "host-pinned"
	case KindDevice:
		return "device"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// CPUAddr is an address that the CPU uses; zero means "none".
type CPUAddr uint64

// DevAddr is an address that devices use; zero means "none". It is another type than CPUAddr since neither is computed from the
// other: which address devices have for memory of the CPU's, their driver answers.
type DevAddr uint64

// NoDevice is the device index of a Region that belongs to no device.
const NoDevice = -1

// Region is a registered span of memory. Its two addresses are independent fields: the device address of pinned memory is
// what the driver answered for it, never computed from the CPU address.
//
// A Region is immutable. It does not own the memory: whoever made it (a device.Device) frees it.
type Region struct {
	kind   Kind
	device int
	len    int64
	cpu    CPUAddr
	dev    DevAddr
	bytes  []byte
}

// RegionSpec describes a Region to NewRegion.
type RegionSpec struct {
	Kind   Kind
	Device int     // index of the owning device, or NoDevice
	Len    int64   // bytes
	CPU    CPUAddr // address of the first byte; zero where the CPU cannot reach it
	Dev    DevAddr // address of the first byte; zero where the device cannot reach it
	Bytes  []byte  // the CPU's view, of length Len; nil where CPU is zero
}

// NewRegion checks s and returns the Region it describes. It is for implementations of device.Device.
func NewRegion(s RegionSpec) (*Region, error) {
	fail := func(why string) (*Region, error) {
		return nil, fmt.Errorf("make %s region of %d bytes: %s: %w", s.Kind, s.Len, why, errdefs.ErrInvalid)
	}
	switch {
	case s.Len <= 0:
		return fail("the length must be positive")
	case s.CPU == 0 && s.Dev == 0:
		return fail("it needs a CPU address or a device address")
	case (s.CPU == 0) != (s.Bytes == nil):
		return fail("the CPU address and the CPU view go together")
	case s.Bytes != nil && int64(len(s.Bytes)) != s.Len:
		return fail("the CPU view has another length")
	case s.CPU > math.MaxUint64-CPUAddr(s.Len) || s.Dev > math.MaxUint64-DevAddr(s.Len):
		return fail("it reaches beyond the end of the address space")
	}
	switch s.Kind {
	case KindHost:
		if s.CPU == 0 || s.Dev != 0 {
			return fail("pageable memory has a CPU address and no device address")
		}
	case KindHostPinned:
		if s.CPU == 0 || s.Dev == 0 {
			return fail("pinned memory has both addresses")
		}
	case KindDevice:
		if s.CPU != 0 || s.Device < 0 {
			return fail("device memory has a device and no CPU address")
		}
	default:
		return fail("unknown kind")
	}
	return &Region{kind: s.Kind, device: s.Device, len: s.Len, cpu: s.CPU, dev: s.Dev, bytes: s.Bytes}, nil
}

// Kind returns what sort of memory this is.
func (r *Region) Kind() Kind { return r.kind }

// Device returns the index of the device that owns or registered the region, or NoDevice.
func (r *Region) Device() int { return r.device }

// Len returns the length in bytes.
func (r *Region) Len() int64 { return r.len }

// CPU returns the CPU address of the first byte, or zero.
func (r *Region) CPU() CPUAddr { return r.cpu }

// Dev returns the device address of the first byte, or zero.
func (r *Region) Dev() DevAddr { return r.dev }

// Bytes returns the CPU's view of the whole region, or nil where the CPU cannot reach it. Reading it while a device
// writes it, or writing it while a device reads it, is a data race that nothing detects: wait for the ticket first.
func (r *Region) Bytes() []byte { return r.bytes }

// String describes the region for errors and logs.
func (r *Region) String() string {
	if r == nil {
		return "no region"
	}
	return fmt.Sprintf("%s region of %d bytes (cpu %#x, device %d at %#x)", r.kind, r.len, uint64(r.cpu), r.device, uint64(r.dev))
}
