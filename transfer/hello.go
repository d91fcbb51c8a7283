package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// Every connection begins with a hello of fixed length and a welcome in reply. Nothing else is sent
// before the welcome, so that a target has registered every connection that carries data. All
// numbers are little-endian.
//
//	hello:   magic u32 | version u16 | purpose u8 | 0 u8 | calling engine, 16 bytes | called engine, or 0, 16 bytes | conn u64
//	welcome: magic u32 | version u16 | status u8 | 0 u8 | called engine, 16 bytes
const (
	magic        = 0x7274_766b // "kvtr"
	version      = 1
	helloBytes   = 48
	welcomeBytes = 24
)

// purpose is the purpose of a connection.
type purpose uint8

const (
	forControl purpose = iota + 1
	forData
	forQueue // for connecting a queue pair; the connection ends with the queue pair
)

type hello struct {
	purpose  purpose
	from, to share.Identity
	conn     uint64 // unique in the calling engine; 0 for a control connection
}

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	b[6] = byte(h.purpose)
	copy(b[8:], h.from[:])
	copy(b[24:], h.to[:])
	binary.LittleEndian.PutUint64(b[40:], h.conn)
	return b
}

// decodeHello decodes a hello. It returns ErrInvalid for a malformed hello, and ErrMismatch for
// another version.
func decodeHello(b []byte) (h hello, err error) {
	switch {
	case len(b) != helloBytes || binary.LittleEndian.Uint32(b) != magic || b[7] != 0:
		return h, fmt.Errorf("%d bytes: not a hello: %w", len(b), errdefs.ErrInvalid)
	case binary.LittleEndian.Uint16(b[4:]) != version:
		return h, fmt.Errorf("hello of version %d: %w", binary.LittleEndian.Uint16(b[4:]), errdefs.ErrMismatch)
	}
	h = hello{purpose: purpose(b[6]), from: share.Identity(b[8:24]), to: share.Identity(b[24:40]), conn: binary.LittleEndian.Uint64(b[40:])}
	if h.purpose < forControl || h.purpose > forQueue || h.from == (share.Identity{}) || h.purpose != forControl && h.to == (share.Identity{}) {
		return hello{}, fmt.Errorf("hello of purpose %d from %s to %s: %w", h.purpose, h.from, h.to, errdefs.ErrInvalid)
	}
	return h, nil
}

func encodeWelcome(s status, id share.Identity) []byte {
	b := make([]byte, welcomeBytes)
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	b[6] = byte(s)
	copy(b[8:], id[:])
	return b
}

// decodeWelcome decodes a welcome. It returns ErrInvalid for a malformed welcome, and ErrMismatch
// for another version.
func decodeWelcome(b []byte) (s status, id share.Identity, err error) {
	switch {
	case len(b) != welcomeBytes || binary.LittleEndian.Uint32(b) != magic || b[6] == 0 || status(b[6]) >= statuses || b[7] != 0:
		return 0, id, fmt.Errorf("%d bytes: not a welcome: %w", len(b), errdefs.ErrInvalid)
	case binary.LittleEndian.Uint16(b[4:]) != version:
		return 0, id, fmt.Errorf("welcome of version %d: %w", binary.LittleEndian.Uint16(b[4:]), errdefs.ErrMismatch)
	}
	return status(b[6]), share.Identity(b[8:]), nil
}

// status is the result of a request.
type status uint8

const (
	statusOK status = iota + 1
	statusInvalid
	statusNotFound
	statusNotSupported
	statusBusy
	statusClosed
	statusOther  // the address belongs to another engine
	statusFailed // the target failed to execute the request
	statuses
)

// statusErrors maps statuses to errors.
var statusErrors = [statuses]error{
	statusInvalid: errdefs.ErrInvalid, statusNotFound: errdefs.ErrNotFound, statusNotSupported: errdefs.ErrNotSupported,
	statusBusy: errdefs.ErrBusy, statusClosed: errdefs.ErrClosed, statusOther: errdefs.ErrLost, statusFailed: errTarget,
}

// errTarget means that the target failed to execute a request.
var errTarget = errors.New("the target failed")

// statusOf converts an error to a status.
func statusOf(err error) status {
	if err == nil {
		return statusOK
	}
	for s := statusInvalid; s < statusFailed; s++ {
		if errors.Is(err, statusErrors[s]) {
			return s
		}
	}
	return statusFailed
}

// err returns the error for a status with the target's text.
func (s status) err(text []byte) error {
	switch {
	case s == statusOK:
		return nil
	case s == 0 || s >= statuses:
		return fmt.Errorf("the target sent status %d: %w", uint8(s), errdefs.ErrMismatch)
	}
	return &wire.AnswerError{Err: &refusal{text: string(text), why: statusErrors[s]}}
}

// refusal is an error replied by the target. A retry would fail again.
type refusal struct {
	text string
	why  error
}

func (r *refusal) Error() string { return fmt.Sprintf("the target replied %q: %v", r.text, r.why) }

func (r *refusal) Unwrap() error { return r.why }

// maxText is the maximum length of the error text in a reply.
const maxText = 512

func textOf(err error) []byte {
	if err == nil {
		return nil
	}
	text := err.Error()
	return []byte(text[:min(len(text), maxText)])
}

// readWelcome reads a welcome and returns the identity of the peer's engine.
func readWelcome(r io.Reader) (share.Identity, error) {
	b := make([]byte, welcomeBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return share.Identity{}, fmt.Errorf("read the target's welcome: %w", err)
	}
	s, id, err := decodeWelcome(b)
	if err != nil {
		return id, &wire.AnswerError{Err: err}
	}
	return id, s.err([]byte("it refused the connection"))
}
