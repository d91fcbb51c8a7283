package mooncake

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer"
)

// A request on a data connection is a header: u64 length, u64 address in the target, u8 operation,
// 7 unused bytes, all little endian. Version 2 sets a flag in the operation, and its replies have a
// status. The bytes of a write follow the header, the bytes of a read follow the status.
const (
	headerBytes = 24
	statusBytes = 8
	opRead      = 0
	opWrite     = 1
	version2    = 0x80 // flag in the operation

	statusOK       = 0x4D43_5456_0000_0000
	statusRejected = 0x4D43_5456_0000_0001
)

// header is the head of a request.
type header struct {
	length, addr uint64
	op           transfer.Op
	v2           bool
}

func (h header) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, h.length)
	b = binary.LittleEndian.AppendUint64(b, h.addr)
	op := byte(opRead)
	if h.op == transfer.Write {
		op = opWrite
	}
	if h.v2 {
		op |= version2
	}
	return append(b, op, 0, 0, 0, 0, 0, 0, 0)
}

// parseHeader parses a header of headerBytes.
func parseHeader(b []byte) (header, error) {
	h := header{
		length: binary.LittleEndian.Uint64(b),
		addr:   binary.LittleEndian.Uint64(b[8:]),
		op:     transfer.Read,
		v2:     b[16]&version2 != 0,
	}
	switch b[16] &^ version2 {
	case opRead:
	case opWrite:
		h.op = transfer.Write
	default:
		return h, fmt.Errorf("request %#02x is neither a read nor a write: %w", b[16], errdefs.ErrInvalid)
	}
	return h, nil
}
