package transfer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
)

// Limits of a description.
const (
	MaxNameBytes    = 255
	MaxBuffers      = 4096 // maximum number of buffers of a segment
	maxHostBytes    = 64
	maxRefusedBytes = 1024
)

// Location is the entry of a segment in the store: the identity and the address of its engine.
type Location struct {
	Engine  share.Identity `json:"engine"`
	Address string         `json:"address"`
}

// Description is an engine's description of one of its segments.
type Description struct {
	Name    string         `json:"name"`
	Engine  share.Identity `json:"engine"`
	Segment uint64         `json:"segment"` // unique in the engine
	Host    string         `json:"host"`    // equal for all processes of a host until its restart
	NICs    []string       `json:"nics,omitempty"`
	Buffers []Buffer       `json:"buffers"` // sorted by offset
}

// Buffer is a registered Region of a segment.
type Buffer struct {
	Name   string `json:"name,omitempty"`
	Offset int64  `json:"offset"` // in the segment
	Length int64  `json:"length"`
	Kind   string `json:"kind"` // "host", "host-pinned" or "device"
	// Share is the descriptor with which processes of the same host import the memory.
	Share *share.Descriptor `json:"share,omitempty"`
	// Keys are for requests of queue pairs of the segment, one for each NIC.
	Keys []rail.Key `json:"keys,omitempty"`
	// Refused is the reason for which the segment's NICs cannot access the buffer. Empty if they
	// can.
	Refused string `json:"refused,omitempty"`
}

// ParseLocation parses a location in JSON. It returns ErrInvalid if the location is malformed.
func ParseLocation(b []byte) (l Location, err error) {
	if err := json.Unmarshal(b, &l); err != nil {
		return Location{}, fmt.Errorf("read location: %w: %w", errdefs.ErrInvalid, err)
	}
	if l.Engine == (share.Identity{}) || l.Address == "" || len(l.Address) > MaxNameBytes {
		return Location{}, fmt.Errorf("read location of engine %s at %q: %w", l.Engine, l.Address, errdefs.ErrInvalid)
	}
	return l, nil
}

// ParseDescription parses and validates a description in JSON. It returns ErrInvalid if the
// description is malformed.
func ParseDescription(b []byte) (d Description, err error) {
	if err := json.Unmarshal(b, &d); err != nil {
		return Description{}, fmt.Errorf("read segment: %w: %w", errdefs.ErrInvalid, err)
	}
	if err := d.Validate(); err != nil {
		return Description{}, err
	}
	return d, nil
}

// Validate returns ErrInvalid with the first error found.
func (d *Description) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("segment %q: %s: %w", d.Name, fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	switch {
	case checkName(d.Name) != nil:
		return checkName(d.Name)
	case d.Engine == share.Identity{} || d.Segment == 0:
		return bad("number %d of engine %s", d.Segment, d.Engine)
	case len(d.Host) > maxHostBytes || len(d.Buffers) > MaxBuffers || len(d.NICs) > rail.MaxNICs:
		return bad("%d buffers, %d NICs, and %d bytes of host", len(d.Buffers), len(d.NICs), len(d.Host))
	}
	var end int64
	for i := range d.Buffers {
		b := &d.Buffers[i]
		if b.Offset < end || b.Length <= 0 || b.Offset > math.MaxInt64-b.Length || len(b.Name) > MaxNameBytes {
			return bad("buffer of %d bytes at %d", b.Length, b.Offset)
		}
		end = b.Offset + b.Length
		if len(b.Keys) != 0 && len(b.Keys) != len(d.NICs) {
			return bad("buffer at %d: %d keys of %d NICs", b.Offset, len(b.Keys), len(d.NICs))
		}
		if len(b.Refused) > maxRefusedBytes || b.Refused != "" && len(b.Keys) != 0 {
			return bad("buffer at %d: refused for %d bytes of reasons, with %d keys", b.Offset, len(b.Refused), len(b.Keys))
		}
		for _, k := range b.Keys {
			if err := k.Validate(b.Length); err != nil {
				return bad("buffer at %d: %v", b.Offset, err)
			}
		}
		if b.Share == nil {
			continue
		}
		if err := b.Share.Validate(); err != nil {
			return bad("buffer at %d: %v", b.Offset, err)
		}
		if b.Share.Length != b.Length {
			return bad("buffer at %d: %d bytes are shared of %d", b.Offset, b.Share.Length, b.Length)
		}
	}
	return nil
}

// checkName returns ErrInvalid if name is not a valid segment name.
func checkName(name string) error {
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	if name == "" || len(name) > MaxNameBytes || strings.TrimFunc(name, printable) != "" {
		return fmt.Errorf("a segment's name is 1 to %d printable characters, not %q: %w", MaxNameBytes, name, errdefs.ErrInvalid)
	}
	return nil
}

// thisHost returns an identifier of this host that changes when it restarts.
func thisHost() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
