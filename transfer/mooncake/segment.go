package mooncake

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"

	"github.com/kvlane/kvlane/errdefs"
)

// Limits of a description.
const (
	maxFrame   = 1 << 20 // maximum length of a handshake frame and of a description
	maxBuffers = 1 << 16
)

// ProtocolTCP is the only supported protocol of segments.
const ProtocolTCP = "tcp"

// Segment describes the registered memory of a process. The JSON field names are Mooncake's.
type Segment struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	// DataHost is the host of DataPort. Older peers leave it empty; then the host of the handshake
	// is used.
	DataHost string `json:"tcp_data_host,omitempty"`
	DataPort int    `json:"tcp_data_port"`
	// version of the data protocol; version 2 and later have a status
	Version   int      `json:"tcp_proto_version"`
	Timestamp string   `json:"timestamp"` // time of the description, for display
	Buffers   []Buffer `json:"buffers"`
}

// Buffer is registered memory: Length bytes from Addr in the address space of the segment's
// process. Name is its location, for example "cpu:0".
type Buffer struct {
	Name   string `json:"name"`
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
}

// server is the address of a segment's handshake as stored in a directory.
type server struct {
	Host string `json:"ip_or_host_name"`
	Port int    `json:"rpc_port"`
}

func (s server) address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// ParseSegment parses a description from a peer or a directory. It ignores unknown fields, which
// belong to other protocols. It returns ErrInvalid for a malformed description, an empty name, an
// address or length of zero, and a buffer that exceeds the address space.
func ParseSegment(text []byte) (*Segment, error) {
	if len(text) > maxFrame {
		return nil, fmt.Errorf("read segment: %d bytes are more than %d: %w", len(text), maxFrame, errdefs.ErrInvalid)
	}
	s := new(Segment)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read segment: %w: %w", errdefs.ErrInvalid, err)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("read segment: %w", err)
	}
	return s, nil
}

func (s *Segment) validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	switch {
	case s.Name == "":
		return fail("it has no name")
	case s.DataPort < 0 || s.DataPort > math.MaxUint16:
		return fail("%q has data port %d", s.Name, s.DataPort)
	case s.Protocol == ProtocolTCP && s.DataPort == 0:
		return fail("%q has no data port", s.Name)
	case len(s.Buffers) > maxBuffers:
		return fail("%q has %d buffers, more than %d", s.Name, len(s.Buffers), maxBuffers)
	}
	for i, b := range s.Buffers {
		if err := b.validate(); err != nil {
			return fmt.Errorf("buffer %d of %q: %w", i, s.Name, err)
		}
	}
	return nil
}

func (b Buffer) validate() error {
	switch {
	case b.Name == "":
		return fmt.Errorf("it has no name: %w", errdefs.ErrInvalid)
	case b.Addr == 0 || b.Length == 0:
		return fmt.Errorf("address %#x, length %d: must not be zero: %w", b.Addr, b.Length, errdefs.ErrInvalid)
	case b.Length > math.MaxUint64-b.Addr:
		return fmt.Errorf("address %#x, length %d: it ends beyond the address space: %w", b.Addr, b.Length, errdefs.ErrInvalid)
	}
	return nil
}

// holds reports whether length bytes from addr are inside the buffer. It does not add values from
// the peer, so it cannot overflow.
func (b Buffer) holds(addr, length uint64) bool {
	return addr >= b.Addr && length <= b.Length && addr-b.Addr <= b.Length-length
}

// holds reports whether length bytes from addr are inside one of the segment's buffers.
func (s *Segment) holds(addr, length uint64) bool {
	for _, b := range s.Buffers {
		if b.holds(addr, length) {
			return true
		}
	}
	return false
}

func (s *Segment) dataAddr() string { return net.JoinHostPort(s.DataHost, strconv.Itoa(s.DataPort)) }
