package share

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Identity identifies one export and is never reused. If the same memory is exported again, the new
// export has another identity.
type Identity [16]byte

// NewIdentity returns a random identity.
func NewIdentity() Identity {
	var id Identity
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// String returns the identity in hexadecimal.
func (id Identity) String() string { return hex.EncodeToString(id[:]) }

// MarshalText returns the identity in hexadecimal.
func (id Identity) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses 32 hexadecimal digits.
func (id *Identity) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(make([]byte, len(text)), text); err != nil || n != len(id) {
		return fmt.Errorf("identity %q: must be 32 hexadecimal digits: %w", text, errdefs.ErrInvalid)
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// Descriptor is the public description of an export, in JSON. It gives no access: an importer also
// needs a handle, which the server sends to allowed users only.
type Descriptor struct {
	Identity Identity          `json:"identity"`
	Type     device.HandleType `json:"handle"`
	PID      int               `json:"pid"`    // process ID of the exporter in its PID namespace
	Socket   string            `json:"socket"` // path of the server's socket
	// Device is the UUID of the device that has the memory. Empty: host memory.
	Device string `json:"device,omitempty"`
	// Bytes is the length of the allocation, which an importer maps as a whole. Offset and Length
	// describe the region in the allocation.
	Bytes  int64 `json:"bytes"`
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

const (
	// maxDescriptor is the maximum length of a descriptor in JSON.
	maxDescriptor = 4096
	// maxSocketPath is the kernel's limit for the address of a socket.
	maxSocketPath = 107
	maxUUID       = 64
)

// ParseDescriptor parses and validates a descriptor in JSON. It returns ErrInvalid if the
// descriptor is malformed.
func ParseDescriptor(b []byte) (Descriptor, error) {
	var d Descriptor
	if len(b) > maxDescriptor {
		return d, fmt.Errorf("descriptor of %d bytes, of %d at most: %w", len(b), maxDescriptor, errdefs.ErrInvalid)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Descriptor{}, fmt.Errorf("read descriptor: %w: %w", errdefs.ErrInvalid, err)
	}
	if dec.More() {
		return Descriptor{}, fmt.Errorf("read descriptor: trailing data: %w", errdefs.ErrInvalid)
	}
	if err := d.Validate(); err != nil {
		return Descriptor{}, err
	}
	return d, nil
}

// Validate returns ErrInvalid for an invalid descriptor.
func (d *Descriptor) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("descriptor: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	_, unknown := d.Type.MarshalText()
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	switch {
	case d.Identity == Identity{}:
		return bad("it has no identity")
	case unknown != nil:
		return bad("handle type %d is unknown", uint8(d.Type))
	case d.PID <= 0:
		return bad("process %d", d.PID)
	case !filepath.IsAbs(d.Socket) || len(d.Socket) > maxSocketPath || strings.ContainsRune(d.Socket, 0):
		return bad("%q is not an absolute path of at most %d bytes", d.Socket, maxSocketPath)
	case len(d.Device) > maxUUID || strings.TrimFunc(d.Device, printable) != "":
		return bad("%q is not a UUID", d.Device)
	case d.Device == "" && d.Type != device.HandleMemFD:
		return bad("host memory has no handle of type %s", d.Type)
	case d.Bytes <= 0 || d.Length <= 0 || d.Length > d.Bytes || d.Offset < 0 || d.Offset > d.Bytes-d.Length:
		return bad("%d bytes at %d of an allocation of %d", d.Length, d.Offset, d.Bytes)
	}
	return nil
}
