// Package hello reads and writes the messages by which both sides of a TCP connection of baidu_std
// agree on RDMA. All numbers are big-endian.
//
//	client              server
//	hello        ->
//	             <-     hello, or a refusal
//	ack          ->
//
// A hello of version 2 has 40 bytes:
//
//	0   "RDMA"
//	4   u16: bytes of the hello, 40 to 4096; a receiver skips those after the first 40
//	6   u16: version of the hello, 2
//	8   u16: version of the implementation, 1
//	10  u32: bytes of a receive block
//	14  u16, u16: requests of the send queue and of the receive queue
//	18  u16: LID, 16 bytes: GID, u32: number of the queue pair
//
// A hello of version 3 has "RDM3", a u32 with the bytes of a protobuf message, 1 to 8192, and the
// message. Receivers skip its unknown fields. Field 7 (ECE) is among them: a peer without it uses
// no enhanced connection establishment. Field 1000 is an extension of kvlane.
package hello

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rpc/internal/fields"
)

// Limits of the protocol.
const (
	MinBlockBytes = 1024
	MinQueue      = 16
	AckBytes      = 4
	MagicBytes    = 4

	v2Bytes    = 40
	maxV2Bytes = 4096
	maxV3Bytes = 8192
)

// Version is the version of a hello.
type Version uint8

// The versions.
const (
	V2 Version = 2
	V3 Version = 3
)

var magics = map[string]Version{"RDMA": V2, "RDM3": V3}

// Hello is the offer of one side.
type Hello struct {
	Version    Version
	BlockBytes uint32 // bytes of each receive that this side posts
	SendQueue  uint32 // requests of its send queue
	RecvQueue  uint32 // requests of its receive queue
	LID        uint32
	GID        rdma.GID
	QPNum      uint32
	Extension  *Extension // of version 3; nil: the peer is not kvlane
}

// Extension is the part of a hello for kvlane peers. It offers a second queue pair, by which data
// are placed directly into the memory of the other side.
type Extension struct {
	QPNum uint32
	// Reads is the number of concurrent RDMA reads that the queue pair serves.
	Reads uint32
}

// Is reports whether the first MagicBytes of a connection are those of a hello.
func Is(magic []byte) bool { return magics[string(magic)] != 0 }

// Validate returns ErrInvalid for a hello that must be refused.
func (h *Hello) Validate() error {
	queues := min(h.SendQueue, h.RecvQueue)
	switch {
	case h.BlockBytes < MinBlockBytes:
		return fmt.Errorf("hello with blocks of %d bytes, of at least %d: %w", h.BlockBytes, MinBlockBytes, errdefs.ErrInvalid)
	case queues < MinQueue || max(h.SendQueue, h.RecvQueue) > math.MaxUint16:
		return fmt.Errorf("hello with queues of %d and %d requests, of at least %d: %w", h.SendQueue, h.RecvQueue, MinQueue, errdefs.ErrInvalid)
	case h.LID > math.MaxUint16:
		return fmt.Errorf("hello with LID %d: %w", h.LID, errdefs.ErrInvalid)
	case h.Version == V3 && h.QPNum == 0 || h.Extension != nil && (h.Extension.QPNum == 0 || h.Version != V3):
		return fmt.Errorf("hello without the number of a queue pair: %w", errdefs.ErrInvalid)
	}
	return nil
}

// Append appends the encoded hello to b. It returns ErrInvalid for values that a peer refuses.
func (h *Hello) Append(b []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return b, err
	}
	if h.Version == V2 {
		b = append(b, "RDMA"...)
		for _, v := range []uint16{v2Bytes, 2, 1} {
			b = binary.BigEndian.AppendUint16(b, v)
		}
		b = binary.BigEndian.AppendUint32(b, h.BlockBytes)
		for _, v := range []uint32{h.SendQueue, h.RecvQueue, h.LID} {
			b = binary.BigEndian.AppendUint16(b, uint16(v))
		}
		b = append(b, h.GID[:]...)
		return binary.BigEndian.AppendUint32(b, h.QPNum), nil
	}
	return h.appendV3(b), nil
}

func (h *Hello) appendV3(b []byte) []byte {
	at := len(b)
	b = append(b, "RDM3\x00\x00\x00\x00"...)
	number := func(n protowire.Number, v uint32) {
		b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
	}
	number(1, h.BlockBytes)
	number(2, h.SendQueue)
	number(3, h.RecvQueue)
	number(4, h.LID)
	b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), h.GID[:])
	number(6, h.QPNum)
	if e := h.Extension; e != nil {
		var x []byte
		for i, v := range []uint32{e.QPNum, e.Reads} {
			x = protowire.AppendVarint(protowire.AppendTag(x, protowire.Number(i+1), protowire.VarintType), uint64(v))
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, extensionField, protowire.BytesType), x)
	}
	binary.BigEndian.PutUint32(b[at+MagicBytes:], uint32(len(b)-at-2*MagicBytes))
	return b
}

const extensionField = 1000

// Refusal returns the hello by which a server without RDMA continues on the TCP connection.
func Refusal(v Version) []byte {
	if v == V2 {
		return append([]byte("RDMA\x00\x28\xff\xff"), make([]byte, v2Bytes-8)...)
	}
	return (&Hello{Version: V3}).appendV3(nil)
}

// Read reads a hello from r, and no byte after it. It returns ErrMismatch for other data, after
// which the connection is not usable, and the errors of r. After ErrInvalid the hello was read to
// its end but must be refused; Version is then set.
func Read(r io.Reader) (Hello, error) {
	var b [v2Bytes]byte
	if _, err := io.ReadFull(r, b[:8]); err != nil {
		return Hello{}, fmt.Errorf("read hello: %w", err)
	}
	h := Hello{Version: magics[string(b[:MagicBytes])]}
	switch h.Version {
	case V2:
		return h, h.readV2(r, &b)
	case V3:
		n := binary.BigEndian.Uint32(b[MagicBytes:])
		if n == 0 || n > maxV3Bytes {
			return h, fmt.Errorf("read hello of %d bytes: %w", n, errdefs.ErrMismatch)
		}
		m := make([]byte, n)
		if _, err := io.ReadFull(r, m); err != nil {
			return h, fmt.Errorf("read hello: %w", err)
		}
		if err := h.decodeV3(m); err != nil {
			return h, err
		}
		return h, h.Validate()
	}
	return h, fmt.Errorf("read hello: magic %q: %w", b[:MagicBytes], errdefs.ErrMismatch)
}

// readV2 reads a hello after its first 8 bytes.
func (h *Hello) readV2(r io.Reader, b *[v2Bytes]byte) error {
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < v2Bytes || n > maxV2Bytes {
		return fmt.Errorf("read hello of %d bytes: %w", n, errdefs.ErrMismatch)
	}
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return fmt.Errorf("read hello: %w", err)
	}
	if _, err := io.CopyN(io.Discard, r, int64(n-v2Bytes)); err != nil {
		return fmt.Errorf("read hello: %w", err)
	}
	h.BlockBytes = binary.BigEndian.Uint32(b[10:])
	h.SendQueue, h.RecvQueue = uint32(binary.BigEndian.Uint16(b[14:])), uint32(binary.BigEndian.Uint16(b[16:]))
	h.LID = uint32(binary.BigEndian.Uint16(b[18:]))
	copy(h.GID[:], b[20:])
	h.QPNum = binary.BigEndian.Uint32(b[36:])
	if version, impl := binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint16(b[8:]); version != 2 || impl != 1 {
		return fmt.Errorf("hello of version %d.%d: %w", version, impl, errdefs.ErrInvalid)
	}
	return h.Validate()
}

// decodeV3 decodes the message of version 3. All of fields 1 to 6 are required.
func (h *Hello) decodeV3(m []byte) error {
	targets := [...]*uint32{1: &h.BlockBytes, 2: &h.SendQueue, 3: &h.RecvQueue, 4: &h.LID, 6: &h.QPNum}
	seen := 0
	err := fields.Each(m, func(n protowire.Number, v uint64, b []byte) error {
		switch {
		case b == nil && n < protowire.Number(len(targets)) && targets[n] != nil:
			if v > math.MaxUint32 {
				return fmt.Errorf("hello with %d in field %d: %w", v, n, errdefs.ErrInvalid)
			}
			*targets[n] = uint32(v)
			seen |= 1 << n
		case b != nil && n == 5:
			if len(b) != len(h.GID) {
				return fmt.Errorf("hello with a GID of %d bytes: %w", len(b), errdefs.ErrInvalid)
			}
			copy(h.GID[:], b)
			seen |= 1 << n
		case b != nil && n == extensionField:
			h.Extension = new(Extension)
			return h.Extension.decode(b)
		}
		return nil
	})
	if err == nil && seen != 0b1111110 {
		err = fmt.Errorf("hello without required fields (%#b): %w", seen, errdefs.ErrInvalid)
	}
	return err
}

func (e *Extension) decode(m []byte) error {
	targets := [...]*uint32{1: &e.QPNum, 2: &e.Reads}
	return fields.Each(m, func(n protowire.Number, v uint64, b []byte) error {
		if b == nil && n < protowire.Number(len(targets)) {
			if v > math.MaxUint32 {
				return fmt.Errorf("extension with %d in field %d: %w", v, n, errdefs.ErrInvalid)
			}
			*targets[n] = uint32(v)
		}
		return nil
	})
}

// Ack returns the message by which a client ends the handshake.
func Ack(useRDMA bool) []byte {
	if useRDMA {
		return []byte{0, 0, 0, 1}
	}
	return make([]byte, AckBytes)
}

// ReadAck reads the end of a handshake and reports whether the client uses RDMA.
func ReadAck(r io.Reader) (bool, error) {
	var b [AckBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return false, fmt.Errorf("read the ack of a handshake: %w", err)
	}
	return b[3]&1 != 0, nil
}
