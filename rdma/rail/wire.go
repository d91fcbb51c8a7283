package rail

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// MaxNICs is the maximum number of NICs of an engine.
const MaxNICs = 64

// Key identifies registered memory in a peer's requests over one NIC.
type Key struct {
	Addr uint64 `json:"addr"` // address of the first byte for NICs; not an address in the process
	RKey uint32 `json:"rkey"`
}

// Validate returns ErrInvalid if n bytes from the key's address overflow.
func (k Key) Validate(n int64) error {
	if n < 0 || k.Addr > math.MaxUint64-uint64(n) {
		return fmt.Errorf("%d bytes at %#x: %w", n, k.Addr, errdefs.ErrInvalid)
	}
	return nil
}

// Endpoint is the data that a peer needs to connect to a queue.
type Endpoint struct {
	QP    uint32 `json:"qp"`
	PSN   uint32 `json:"psn"`
	GID   []byte `json:"gid"`
	LID   uint16 `json:"lid,omitempty"`
	MTU   uint8  `json:"mtu"` // MTU code, see rdma.MTU
	Reads uint8  `json:"reads"`
}

const (
	gidBytes = 16
	max24    = 1<<24 - 1
	maxMTU   = 5
)

// Validate returns ErrInvalid if an endpoint received from a peer is malformed.
func (e *Endpoint) Validate() error {
	if e.QP > max24 || e.PSN > max24 || len(e.GID) != gidBytes || e.MTU == 0 || e.MTU > maxMTU {
		return fmt.Errorf("queue pair %d, packet %d, address of %d bytes, MTU %d: %w", e.QP, e.PSN, len(e.GID), e.MTU, errdefs.ErrInvalid)
	}
	return nil
}

// Span is a range of bytes in the peer's buffer.
type Span struct{ Off, Len int64 }

// AppendSpan appends n bytes at off to a list. It extends the last span if the new one begins at
// its end.
func AppendSpan(list []Span, off, n int64) []Span {
	if k := len(list); k > 0 && list[k-1].Off+list[k-1].Len == off {
		list[k-1].Len += n
		return list
	}
	return append(list, Span{off, n})
}
