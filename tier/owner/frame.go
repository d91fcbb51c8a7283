package owner

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// operation is an operation of an owner.
type operation uint8

// The operations.
const (
	opRemove operation = 1 + iota
	opPin
	opUnpin
	opWhy
)

const (
	// MaxKeys is the maximum number of keys of a request.
	MaxKeys = 1024

	magic       = "kvo\x01"
	headerBytes = 12
	maxReply    = 4 << 20
)

// request asks for an operation on blocks.
type request struct {
	op   operation
	keys []block.Key
}

// encode returns the bytes of the request.
func (q *request) encode() []byte {
	b := append(make([]byte, 0, headerBytes+len(q.keys)*len(block.Key{})), magic...)
	b = binary.LittleEndian.AppendUint32(append(b, byte(q.op), 0, 0, 0), uint32(len(q.keys)))
	for i := range q.keys {
		b = append(b, q.keys[i][:]...)
	}
	return b
}

// readRequest reads a request. It returns ErrInvalid for bytes that are none, and io.EOF at the end
// of the requests.
func readRequest(r io.Reader) (q request, err error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return q, err
	}
	q.op = operation(header[4])
	n := binary.LittleEndian.Uint32(header[8:])
	switch {
	case string(header[:4]) != magic || header[5]|header[6]|header[7] != 0:
		return q, fmt.Errorf("a request begins with %x: %w", header[:8], errdefs.ErrInvalid)
	case q.op == 0 || q.op > opWhy:
		return q, fmt.Errorf("operation %d is not known: %w", q.op, errdefs.ErrInvalid)
	case n == 0 || n > MaxKeys:
		return q, fmt.Errorf("%d keys, must be 1 to %d: %w", n, MaxKeys, errdefs.ErrInvalid)
	}
	q.keys = make([]block.Key, n)
	for i := range q.keys {
		if _, err := io.ReadFull(r, q.keys[i][:]); err != nil {
			return q, fmt.Errorf("read key %d of %d: %w", i, n, noEOF(err))
		}
	}
	return q, block.CheckKeys(q.keys)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Answer is an owner's answer about one block, for opWhy.
type Answer struct {
	Stored bool            `json:"stored,omitempty"` // tier.Why.Stored
	Text   string          `json:"text"`             // tier.Why.String
	Why    json.RawMessage `json:"why"`              // tier.Why
}

// reply is the result of a request.
type reply struct {
	Removed []byte   `json:"removed,omitempty"` // indices of the removed keys, as uint16
	Bytes   int64    `json:"bytes,omitempty"`
	Left    *failure `json:"left,omitempty"`
	Why     []Answer `json:"why,omitempty"`
	Error   *failure `json:"error,omitempty"`
}

// failure is an error that crosses a socket.
type failure struct {
	Text  string `json:"text"`            // one line
	Class string `json:"class,omitempty"` // name of a sentinel; empty: none
}

// classes are the sentinels that cross a socket. The first that fits is sent.
var classes = []struct {
	name string
	err  error
}{
	{"pinned", blockdir.ErrPinned},
	{"pin_limit", blockdir.ErrPinLimit},
	{"busy", errdefs.ErrBusy},
	{"not_found", errdefs.ErrNotFound},
	{"no_space", errdefs.ErrNoSpace},
	{"read_only", errdefs.ErrReadOnly},
	{"closed", errdefs.ErrClosed},
	{"invalid", errdefs.ErrInvalid},
	{"not_supported", errdefs.ErrNotSupported},
	{"canceled", errdefs.ErrCanceled},
}

// failureOf returns nil for nil.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: strings.ReplaceAll(err.Error(), "\n", "; ")}
	for _, c := range classes {
		if f.Class == "" && errors.Is(err, c.err) {
			f.Class = c.name
		}
	}
	return f
}

// ownerError is an error of an owner. It wraps the sentinel of its class, or nil.
type ownerError struct {
	text string
	err  error
}

func (e *ownerError) Error() string { return e.text }
func (e *ownerError) Unwrap() error { return e.err }

// err returns the error. It returns nil for nil.
func (f *failure) err() error {
	if f == nil {
		return nil
	}
	e := &ownerError{text: f.Text}
	for _, c := range classes {
		if c.name == f.Class {
			e.err = c.err
		}
	}
	return e
}

// encode returns the bytes of the reply.
func (p *reply) encode() ([]byte, error) {
	text, err := json.Marshal(p)
	if err == nil && len(text) > maxReply {
		err = fmt.Errorf("a reply of %d bytes, at most %d are allowed: give fewer keys: %w", len(text), maxReply, errdefs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...), nil
}

// readReply reads the reply to a request for some keys. It returns ErrCorrupt for bytes that are
// none.
func readReply(r io.Reader, keys []block.Key) (p reply, removed []block.Key, err error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return p, nil, noEOF(err)
	}
	n := binary.LittleEndian.Uint32(header[:])
	if n > maxReply {
		return p, nil, fmt.Errorf("a reply of %d bytes, at most %d are allowed: %w", n, maxReply, errdefs.ErrCorrupt)
	}
	var text bytes.Buffer // grows with the bytes that arrive
	if _, err := io.CopyN(&text, r, int64(n)); err != nil {
		return p, nil, noEOF(err)
	}
	dec := json.NewDecoder(&text)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil || dec.More() || p.Bytes < 0 || len(p.Removed)%2 != 0 {
		return p, nil, fmt.Errorf("the reply is not valid (%v): %w", err, errdefs.ErrCorrupt) //nolint:errorlint // text
	}
	for at := 0; at < len(p.Removed); at += 2 {
		i := int(binary.LittleEndian.Uint16(p.Removed[at:]))
		if i >= len(keys) {
			return p, nil, fmt.Errorf("the reply names key %d of %d: %w", i, len(keys), errdefs.ErrCorrupt)
		}
		removed = append(removed, keys[i])
	}
	return p, removed, nil
}

// setRemoved sets the indices of the removed keys.
func (p *reply) setRemoved(r *tier.Removed, keys []block.Key) {
	removed := make(map[block.Key]bool, len(r.Keys))
	for _, key := range r.Keys {
		removed[key] = true
	}
	for i, key := range keys {
		if removed[key] {
			delete(removed, key) // keys may repeat it
			p.Removed = binary.LittleEndian.AppendUint16(p.Removed, uint16(i))
		}
	}
	p.Bytes, p.Left = r.Bytes, failureOf(r.Left)
}
