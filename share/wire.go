package share

import (
	"encoding/binary"
	"fmt"
	"io/fs"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Messages on the socket of type SOCK_SEQPACKET. Each packet is one message. The importer sends one
// request of fixed length for the memory of an export. The server sends one reply with the handle,
// and a second one with the reason when the export ends. The importer sends the end request when it
// no longer accesses the memory. All numbers are little-endian.
//
//	request: magic u32 | version u16 | purpose u16 | identity 16 bytes
//	reply:   magic u32 | version u16 | status u8 | handle type u8 | bytes u64 | offset u64 | length u64 | handle or nothing, 64 bytes
const (
	magic        = 0x6873_766b // "kvsh"
	version      = 3
	requestBytes = 24
	replyBytes   = 32 + device.HandleBytes
)

// purpose is the purpose of a request.
type purpose uint16

const (
	forMemory purpose = iota
	forEnd            // the importer no longer uses the memory
	purposes
)

// status is the result of a request.
type status uint8

const (
	statusOK status = iota + 1
	statusDenied
	statusMalformed
	statusUnknown
	statusBusy
	statusWithdrawn
	statusStopped
	statusUnnamed
	statuses
)

// err returns the importer's error for a status.
func (s status) err() error {
	switch s {
	case statusOK:
		return nil
	case statusDenied:
		return fmt.Errorf("the exporter does not allow this user: %w", fs.ErrPermission)
	case statusMalformed:
		return fmt.Errorf("the exporter does not understand the request: %w", errdefs.ErrInvalid)
	case statusUnknown:
		return fmt.Errorf("the exporter does not have this export: %w", errdefs.ErrNotFound)
	case statusBusy:
		return fmt.Errorf("the exporter has reached its limit of importers: %w", errdefs.ErrBusy)
	case statusWithdrawn:
		return fmt.Errorf("the exporter has withdrawn it: %w", errdefs.ErrNotFound)
	case statusStopped:
		return fmt.Errorf("the exporter has stopped: %w", errdefs.ErrClosed)
	case statusUnnamed:
		return fmt.Errorf("the exporter cannot detect the end of this process, and gives it no device memory: it is in another PID namespace, for which Linux 6.5 is needed: %w", errdefs.ErrNotSupported)
	default:
		return fmt.Errorf("status %d: %w", uint8(s), errdefs.ErrMismatch)
	}
}

func encodeRequest(id Identity, what purpose) []byte {
	b := make([]byte, requestBytes)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], uint16(what))
	copy(b[8:], id[:])
	return b
}

// decodeRequest returns the identity and purpose of a request. It returns ErrInvalid for a
// malformed request, and ErrMismatch for another version.
func decodeRequest(b []byte) (id Identity, what purpose, err error) {
	switch {
	case len(b) != requestBytes || binary.LittleEndian.Uint32(b) != magic || binary.LittleEndian.Uint16(b[6:]) >= uint16(purposes):
		return id, 0, fmt.Errorf("%d bytes: not a request: %w", len(b), errdefs.ErrInvalid)
	case binary.LittleEndian.Uint16(b[4:]) != version:
		return id, 0, fmt.Errorf("request of version %d: %w", binary.LittleEndian.Uint16(b[4:]), errdefs.ErrMismatch)
	}
	return Identity(b[8:requestBytes]), purpose(binary.LittleEndian.Uint16(b[6:])), nil
}

// reply is a reply of a server. Its handle has no file descriptor.
type reply struct {
	status status
	handle device.Handle
	length int64
}

func (r *reply) encode() []byte {
	b := make([]byte, replyBytes)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	b[6], b[7] = byte(r.status), byte(r.handle.Type)
	binary.LittleEndian.PutUint64(b[8:], uint64(r.handle.Bytes))
	binary.LittleEndian.PutUint64(b[16:], uint64(r.handle.Off))
	binary.LittleEndian.PutUint64(b[24:], uint64(r.length))
	copy(b[32:], r.handle.Data[:])
	return b
}

// decodeReply decodes a reply. It returns ErrInvalid for a malformed reply, and ErrMismatch for
// another version.
func decodeReply(b []byte) (r reply, err error) {
	switch {
	case len(b) != replyBytes || binary.LittleEndian.Uint32(b) != magic || b[6] == 0 || status(b[6]) >= statuses:
		return r, fmt.Errorf("%d bytes: not a reply: %w", len(b), errdefs.ErrInvalid)
	case binary.LittleEndian.Uint16(b[4:]) != version:
		return r, fmt.Errorf("reply of version %d: %w", binary.LittleEndian.Uint16(b[4:]), errdefs.ErrMismatch)
	}
	r = reply{
		status: status(b[6]),
		handle: device.Handle{
			Type: device.HandleType(b[7]), FD: -1, Data: [device.HandleBytes]byte(b[32:]),
			Bytes: int64(binary.LittleEndian.Uint64(b[8:])), Off: int64(binary.LittleEndian.Uint64(b[16:])),
		},
		length: int64(binary.LittleEndian.Uint64(b[24:])),
	}
	return r, nil
}
