package rail

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// MaxNICs is how many NICs an engine has at most.
const MaxNICs = 64

// Key is how requests of a peer name registered memory, through one NIC.
type Key struct {
	Addr uint64 `json:"addr"` // of the first byte; it is no address of the process
	RKey uint32 `json:"rkey"`
}

// Validate reports whether n bytes from the key's address on overflow. ErrInvalid.
func (k Key) Validate(n int64) error {
	if n < 0 || k.Addr > math.MaxUint64-uint64(n) {
		return fmt.Errorf("%d bytes at %#x: %w", n, k.Addr, errdefs.ErrInvalid)
	}
	return nil
}

// Endpoint is what a peer has to know of a queue to connect its own to it.
type Endpoint struct {
	QP    uint32 `json:"qp"`
	PSN   uint32 `json:"psn"`
	GID   []byte `json:"gid"`
	LID   uint16 `json:"lid,omitempty"`
	MTU   uint8  `json:"mtu"` // as the verbs count them
	Reads uint8  `json:"reads"`
}

const (
	gidBytes = 16
	max24    = 1<<24 - 1
	maxMTU   = 5
)

// Validate reports what is wrong with what a peer says. ErrInvalid.
func (e *Endpoint) Validate() error {
	if e.QP > max24 || e.PSN > max24 || len(e.GID) != gidBytes || e.MTU == 0 || e.MTU > maxMTU {
		return fmt.Errorf("queue pair %d, packet %d, address of %d bytes, MTU %d: %w", e.QP, e.PSN, len(e.GID), e.MTU, errdefs.ErrInvalid)
	}
	return nil
}

// Span is bytes of the peer's buffer.
type Span struct{ Off, Len int64 }

// AppendSpan adds n bytes at off to a list, to the last span if they are its neighbours.
func AppendSpan(list []Span, off, n int64) []Span {
	if k := len(list); k > 0 && list[k-1].Off+list[k-1].Len == off {
		list[k-1].Len += n
		return list
	}
	return append(list, Span{off, n})
}
