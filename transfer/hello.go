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

// Every connection begins with a hello, of a fixed length, and a welcome. Nothing else is sent before the welcome has come, so that a
// target knows of every connection on which something may come. All numbers are little-endian.
//
//	hello:   magic u32 | version u16 | purpose u8 | 0 u8 | engine that calls, 16 bytes | engine that is called, or 0, 16 bytes | lane u64
//	welcome: magic u32 | version u16 | status u8 | 0 u8 | engine that was called, 16 bytes
const (
	magic        = 0x7274_766b // "kvtr"
	version      = 1
	helloBytes   = 48
	welcomeBytes = 24
)

// purpose says what a connection is for.
type purpose uint8

const (
	forControl purpose = iota + 1
	forData
	forQueue // queue pairs are connected by it, and end with it
)

type hello struct {
	purpose  purpose
	from, to share.Identity
	conn     uint64 // of those of the engine that calls; not of control
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

// decodeHello returns what a caller says of itself. ErrInvalid, ErrMismatch of another version.
func decodeHello(b []byte) (h hello, err error) {
	switch {
	case len(b) != helloBytes || binary.LittleEndian.Uint32(b) != magic || b[7] != 0:
		return h, fmt.Errorf("%d bytes are no hello: %w", len(b), errdefs.ErrInvalid)
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

// decodeWelcome returns what the engine that was called says. ErrInvalid, ErrMismatch of another version.
func decodeWelcome(b []byte) (s status, id share.Identity, err error) {
	switch {
	case len(b) != welcomeBytes || binary.LittleEndian.Uint32(b) != magic || b[6] == 0 || status(b[6]) >= statuses || b[7] != 0:
		return 0, id, fmt.Errorf("%d bytes are no welcome: %w", len(b), errdefs.ErrInvalid)
	case binary.LittleEndian.Uint16(b[4:]) != version:
		return 0, id, fmt.Errorf("welcome of version %d: %w", binary.LittleEndian.Uint16(b[4:]), errdefs.ErrMismatch)
	}
	return status(b[6]), share.Identity(b[8:]), nil
}

// status is what a target answers.
type status uint8

const (
	statusOK status = iota + 1
	statusInvalid
	statusNotFound
	statusNotSupported
	statusBusy
	statusClosed
	statusOther  // another engine has the address than was called
	statusFailed // the target could not do it
	statuses
)

// statusErrors is what the statuses mean, but for those that are good or unknown.
var statusErrors = [statuses]error{
	statusInvalid: errdefs.ErrInvalid, statusNotFound: errdefs.ErrNotFound, statusNotSupported: errdefs.ErrNotSupported,
	statusBusy: errdefs.ErrBusy, statusClosed: errdefs.ErrClosed, statusOther: errdefs.ErrLost, statusFailed: errTarget,
}

// errTarget is why a task failed that its target could not do.
var errTarget = errors.New("the target failed")

// statusOf returns the status that says err.
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

// err returns what s means, with what the target says of it.
func (s status) err(text []byte) error {
	switch {
	case s == statusOK:
		return nil
	case s == 0 || s >= statuses:
		return fmt.Errorf("the target answers status %d: %w", uint8(s), errdefs.ErrMismatch)
	}
	return &wire.AnswerError{Err: &refusal{text: string(text), why: statusErrors[s]}}
}

// refusal is what a target has answered. What it refused it will refuse again.
type refusal struct {
	text string
	why  error
}

func (r *refusal) Error() string { return fmt.Sprintf("the target answers %q: %v", r.text, r.why) }

func (r *refusal) Unwrap() error { return r.why }

// maxText is how much of an error is sent.
const maxText = 512

func textOf(err error) []byte {
	if err == nil {
		return nil
	}
	text := err.Error()
	return []byte(text[:min(len(text), maxText)])
}

// readWelcome reads the welcome of r.
func readWelcome(r io.Reader) (share.Identity, error) {
	b := make([]byte, welcomeBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return share.Identity{}, fmt.Errorf("read the target's welcome: %w", err)
	}
	s, id, err := decodeWelcome(b)
	if err != nil {
		return id, &wire.AnswerError{Err: err}
	}
	return id, s.err([]byte("it does not take the connection"))
}
