package mem

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Extent is the Len bytes of Region from offset Off.
type Extent struct {
	Region *Region
	Off    int64
	Len    int64
}

// All returns the extent that covers r.
func All(r *Region) Extent { return Extent{Region: r, Len: r.Len()} }

// Validate returns ErrInvalid if the extent is not inside its region, and ErrLost if the region is
// lost. An empty extent is valid.
func (e Extent) Validate() error {
	if e.Region == nil {
		return fmt.Errorf("extent has no region: %w", errdefs.ErrInvalid)
	}
	// Off > len-Len rather than Off+Len > len: the sum may overflow.
	if e.Off < 0 || e.Len < 0 || e.Len > e.Region.len || e.Off > e.Region.len-e.Len {
		return fmt.Errorf("extent [%d, +%d) is outside the %s: %w", e.Off, e.Len, e.Region, errdefs.ErrInvalid)
	}
	return e.Region.origin.Lost()
}

// CPU returns the CPU address of the first byte, or zero.
func (e Extent) CPU() CPUAddr {
	if e.Region.cpu == 0 {
		return 0
	}
	return e.Region.cpu + CPUAddr(e.Off)
}

// Dev returns the device address of the first byte, or zero.
func (e Extent) Dev() DevAddr {
	if e.Region.dev == 0 {
		return 0
	}
	return e.Region.dev + DevAddr(e.Off)
}

// Registration returns the number of bytes at the start of e that are in one registration with a
// driver, and the number of that registration (RegionSpec.RegistrationBytes). A driver may refuse a
// copy that crosses registrations.
func (e Extent) Registration() (bytes, number int64) {
	n := e.Region.registration
	if n == 0 {
		return e.Len, 0
	}
	return min(e.Len, n-e.Off%n), e.Off / n
}

// Bytes returns the extent as a slice, or nil if the CPU cannot reach it. The extent must be valid.
func (e Extent) Bytes() []byte {
	if e.Region.bytes == nil {
		return nil
	}
	return e.Region.bytes[e.Off : e.Off+e.Len : e.Off+e.Len]
}

// Sub returns the n bytes of e from offset off. It panics if they are not inside e.
func (e Extent) Sub(off, n int64) Extent {
	if off < 0 || n < 0 || off > e.Len-n {
		panic(fmt.Sprintf("mem: sub-extent [%d, +%d) of %d bytes", off, n, e.Len))
	}
	return Extent{Region: e.Region, Off: e.Off + off, Len: n}
}
