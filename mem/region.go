package mem

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// Kind is the kind of memory of a Region.
type Kind uint8

// Kinds of Region.
const (
	KindHost       Kind = iota + 1 // pageable host memory: a CPU address, no device address
	KindHostPinned                 // page-locked host memory: a CPU address and a device address
	KindDevice                     // GPU memory: a device address, no CPU address
	KindFile                       // a file: no address; see Region.File
)

// String returns the name of the kind in errors and metrics.
func (k Kind) String() string {
	switch k {
	case KindHost:
		return "host"
	case KindHostPinned:
		return "host-pinned"
	case KindDevice:
		return "device"
	case KindFile:
		return "file"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// CPUAddr is an address used by the CPU. Zero means no address.
type CPUAddr uint64

// DevAddr is an address used by devices. Zero means no address. It is a separate type, because only
// the driver can translate between it and CPUAddr.
type DevAddr uint64

// File is the file of a Region of kind file. Streams of files require more methods.
type File interface {
	// Name returns the name for error messages.
	Name() string
}

// NoDevice is the device index of a Region without a device.
const NoDevice = -1

// Region is a registered span of memory, or of a file. Its two addresses are independent: the
// device address of pinned memory comes from the driver and is never computed from the CPU address.
//
// A Region is immutable, except that memory of another process may be lost (Origin). It does not
// own the memory. Its creator, such as a device.Device, frees it.
type Region struct {
	kind         Kind
	device       int
	len          int64
	cpu          CPUAddr
	dev          DevAddr
	bytes        []byte
	file         File
	origin       *Origin
	registration int64
}

// RegionSpec describes a Region for NewRegion.
type RegionSpec struct {
	Kind   Kind
	Device int     // index of the owning device, or NoDevice
	Len    int64   // bytes
	CPU    CPUAddr // address of the first byte, or zero
	Dev    DevAddr // address of the first byte, or zero
	Bytes  []byte  // the memory as a slice of length Len; nil if CPU is zero
	File   File    // file of a region of kind file, else nil
	Origin *Origin // of memory exported by another process, else nil
	// RegistrationBytes is the length of each registration of pinned memory with a driver; the last
	// may be shorter. Zero means a single registration. Registrations are contiguous at both
	// addresses.
	RegistrationBytes int64
}

// NewRegion validates s and returns the Region. It is for implementations of device.Device and of
// files.
func NewRegion(s RegionSpec) (*Region, error) {
	fail := func(why string) (*Region, error) {
		return nil, fmt.Errorf("make %s region of %d bytes: %s: %w", s.Kind, s.Len, why, errdefs.ErrInvalid)
	}
	switch {
	case s.Len <= 0:
		return fail("the length must be positive")
	case (s.Kind == KindFile) != (s.File != nil):
		return fail("file memory, and no other, needs a file")
	case s.Kind == KindFile:
		if s.CPU != 0 || s.Dev != 0 || s.Bytes != nil || s.Device != NoDevice {
			return fail("file memory has no address and no device")
		}
		return &Region{kind: s.Kind, device: NoDevice, len: s.Len, file: s.File}, nil
	case s.CPU == 0 && s.Dev == 0:
		return fail("it needs a CPU address or a device address")
	case (s.CPU == 0) != (s.Bytes == nil):
		return fail("the CPU address and the CPU view must be given together")
	case s.Bytes != nil && int64(len(s.Bytes)) != s.Len:
		return fail("the CPU view has a different length")
	case s.RegistrationBytes < 0 || s.RegistrationBytes > 0 && s.Kind != KindHostPinned:
		return fail("only pinned memory has registrations, of positive length")
	case s.CPU > math.MaxUint64-CPUAddr(s.Len) || s.Dev > math.MaxUint64-DevAddr(s.Len):
		return fail("it ends beyond the address space")
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
	return &Region{kind: s.Kind, device: s.Device, len: s.Len, cpu: s.CPU, dev: s.Dev, bytes: s.Bytes, origin: s.Origin, registration: s.RegistrationBytes}, nil
}

// Kind returns the kind of memory.
func (r *Region) Kind() Kind { return r.kind }

// Device returns the index of the device that owns or registered the region, or NoDevice.
func (r *Region) Device() int { return r.device }

// Len returns the length in bytes.
func (r *Region) Len() int64 { return r.len }

// CPU returns the CPU address of the first byte, or zero.
func (r *Region) CPU() CPUAddr { return r.cpu }

// Dev returns the device address of the first byte, or zero.
func (r *Region) Dev() DevAddr { return r.dev }

// Bytes returns the region as a slice, or nil if the CPU cannot access it. Accessing it while a
// device writes it, or writing it while a device reads it, is an undetected data race: wait for the
// ticket first.
func (r *Region) Bytes() []byte { return r.bytes }

// File returns the file of a region of kind file, else nil.
func (r *Region) File() File { return r.file }

// Origin returns the origin of memory exported by another process, else nil.
func (r *Region) Origin() *Origin { return r.origin }

// String describes the region for errors and logs.
func (r *Region) String() string {
	if r == nil {
		return "no region"
	}
	if r.file != nil {
		return fmt.Sprintf("file region of %d bytes (%s)", r.len, r.file.Name())
	}
	return fmt.Sprintf("%s region of %d bytes (cpu %#x, device %d at %#x)", r.kind, r.len, uint64(r.cpu), r.device, uint64(r.dev))
}
