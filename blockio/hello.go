package blockio

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// helloMagic begins the content of hellos. Its first bytes are those of no text protocol.
const helloMagic = "\x89KVIO\r\n\x1a"

const (
	helloBytes       = 112 // with the head
	helloResultBytes = 96
	// MaxHelloBytes is the length of the longest hello. A server reads a hello before it knows the
	// client's credential, so all identities together have at most about 16,000 shards.
	MaxHelloBytes = 128 << 10
	// MaxZoneBytes is the length of the longest zone.
	MaxZoneBytes = 64
)

// Format is a declared identity with the layout of its images.
type Format struct {
	Identity   block.Digest
	ShardBytes []int64
}

// Hello is the first frame of a connection.
//
//	  0  head of a request; count is the number of identities, flags and addresses are zero
//	 40  magic           89 4B 56 49 4F 0D 0A 1A
//	 48  client          16 bytes, unique for each client; not zero
//	 64  limits: entries u32, keys u32, entry bytes u64, request bytes u64, credits u32,
//	     keep-alive u32, in milliseconds
//	 96  token's length  u32
//	100  epoch of the client's list of servers, u64; 0: none
//	108  zero            4 bytes
//	112  token, without padding
//	     for each identity: digest, 32 bytes; zero, u32; number of shards, u32; their lengths,
//	     u64 each
type Hello struct {
	ID              uint64
	RemainingMillis uint32
	Client          [16]byte
	Limits          Limits
	Token           []byte
	Epoch           uint64
	Formats         []Format
}

// HelloResult is the result of a hello.
//
//	 0  head of a result; count is the length of the zone, bytes and lease time are zero; credits
//	    are those of the limits
//	40  magic, as in the hello
//	48  boot    16 bytes, another value after each start of the server; not zero
//	64  limits  in force, none above those of the hello
//	96  zone    printable ASCII without spaces, at most MaxZoneBytes; empty: unknown
//
// If the status is not StatusOK the result ends after the head, and the server closes the
// connection. With StatusStale the head has the epoch of the server's list at 24, u64.
type HelloResult struct {
	ID     uint64
	Status Status
	Boot   [16]byte
	Limits Limits
	Zone   string
	Epoch  uint64 // with StatusStale
}

// VersionError is the error of a frame of another version. It wraps ErrMismatch.
type VersionError struct{ Version uint8 }

// Error returns the versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("frame of version %d, this build has version %d: %v", e.Version, Version, errdefs.ErrMismatch)
}

// Unwrap returns ErrMismatch.
func (e *VersionError) Unwrap() error { return errdefs.ErrMismatch }

// bytes returns the length of the hello.
func (h *Hello) bytes() int {
	n := helloBytes + len(h.Token)
	for i := range h.Formats {
		n += 40 + 8*len(h.Formats[i].ShardBytes)
	}
	return n
}

// Validate returns ErrInvalid for a hello that may not be sent.
func (h *Hello) Validate() error {
	switch {
	case h.ID == 0 || h.RemainingMillis == 0 || h.RemainingMillis > MaxMillis || h.Client == [16]byte{}:
		return invalid("hello with id %d of client %x and %d ms", h.ID, h.Client, h.RemainingMillis)
	case len(h.Token) > MaxTokenBytes || len(h.Formats) > MaxIdentities:
		return invalid("hello with %d identities and a token of %d bytes", len(h.Formats), len(h.Token))
	}
	if n := h.bytes(); n > MaxHelloBytes {
		return invalid("hello of %d bytes, of at most %d: declare fewer identities or shards", n, MaxHelloBytes)
	}
	seen := make(map[uint64]bool, len(h.Formats))
	for i := range h.Formats {
		hash := IdentityHash(h.Formats[i].Identity)
		if hash == 0 || seen[hash] {
			return invalid("hello with identity %d as %#x, which is zero or taken", i, hash)
		}
		seen[hash] = true
		if _, err := block.NewLayout(h.Formats[i].ShardBytes); err != nil {
			return fmt.Errorf("hello with identity %d: %w", i, err)
		}
	}
	return h.Limits.Validate()
}

func (h *Hello) equal(o *Hello) bool {
	return h.ID == o.ID && h.RemainingMillis == o.RemainingMillis && h.Client == o.Client && h.Limits == o.Limits && h.Epoch == o.Epoch &&
		slices.Equal(h.Token, o.Token) &&
		slices.EqualFunc(h.Formats, o.Formats, func(a, b Format) bool {
			return a.Identity == b.Identity && slices.Equal(a.ShardBytes, b.ShardBytes)
		})
}

// Append appends the hello to dst. It returns ErrInvalid and dst for one that may not be sent.
func (h *Hello) Append(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	at := len(dst)
	out := appendHead(dst, byte(OpHello), 0, len(h.Formats), h.ID)
	out = le.AppendUint32(out, h.RemainingMillis)
	out = append(out, make([]byte, headBytes-20)...)
	out = append(out, helloMagic...)
	out = append(out, h.Client[:]...)
	out = h.Limits.append(out)
	out = le.AppendUint32(out, uint32(len(h.Token)))
	out = le.AppendUint64(out, h.Epoch)
	out = append(out, make([]byte, 4)...)
	out = append(out, h.Token...)
	for i := range h.Formats {
		f := &h.Formats[i]
		out = append(out, f.Identity[:]...)
		out = le.AppendUint32(out, 0)
		out = le.AppendUint32(out, uint32(len(f.ShardBytes)))
		for _, n := range f.ShardBytes {
			out = le.AppendUint64(out, uint64(n))
		}
	}
	var packed Hello
	if err := packed.Decode(out[at:]); err != nil || !packed.equal(h) {
		return dst, fmt.Errorf("pack hello: %w", orChanged(err))
	}
	return out, nil
}

// Decode decodes and validates a hello. Token refers to b. It returns ErrInvalid, or a
// VersionError; the ID is then set if the frame has a head.
func (h *Hello) Decode(b []byte) error {
	*h = Hello{}
	if err := checkHead(b); err != nil {
		return err
	}
	h.ID, h.RemainingMillis = le.Uint64(b[8:]), le.Uint32(b[16:])
	count := le.Uint32(b[4:])
	if len(b) < helloBytes || len(b) > MaxHelloBytes || Op(b[1]) != OpHello || string(b[40:48]) != helloMagic || count > MaxIdentities {
		return invalid("frame of %d bytes is not a hello", len(b))
	}
	if !zero(b[2:4]) || !zero(b[20:40]) || !zero(b[108:112]) {
		return invalid("hello has bytes that are not zero")
	}
	h.Client = [16]byte(b[48:64])
	h.Limits.decode(b[64:96])
	n := le.Uint32(b[96:])
	h.Epoch = le.Uint64(b[100:])
	b = b[helloBytes:]
	if n > MaxTokenBytes || int(n) > len(b) {
		return invalid("hello with a token of %d bytes", n)
	}
	h.Token, b = b[:n:n], b[n:]
	for i := range count {
		if len(b) < 40 || !zero(b[32:36]) || le.Uint32(b[36:]) > block.MaxShards || len(b)-40 < 8*int(le.Uint32(b[36:])) {
			return invalid("hello is cut at identity %d", i)
		}
		f := Format{Identity: block.Digest(b[:32]), ShardBytes: make([]int64, le.Uint32(b[36:]))}
		b = b[40:]
		for j := range f.ShardBytes {
			f.ShardBytes[j] = int64(le.Uint64(b[8*j:]))
		}
		h.Formats, b = append(h.Formats, f), b[8*len(f.ShardBytes):]
	}
	if len(b) > 0 {
		return invalid("hello with %d bytes at the end", len(b))
	}
	return h.Validate()
}

// Validate returns ErrInvalid for a result that may not be sent.
func (h *HelloResult) Validate() error {
	switch {
	case h.ID == 0 || !h.Status.known() || h.Status == StatusPartial:
		return invalid("result %d of hello with %v", h.ID, h.Status)
	case h.Status != StatusOK && (h.Boot != [16]byte{} || h.Limits != Limits{} || h.Zone != ""):
		return invalid("result of hello with %v and limits", h.Status)
	case (h.Status == StatusStale) != (h.Epoch != 0):
		return invalid("result of hello with %v and epoch %d", h.Status, h.Epoch)
	case h.Status != StatusOK:
		return nil
	case h.Boot == [16]byte{}:
		return invalid("result of hello without the boot's number")
	}
	if err := CheckZone(h.Zone); err != nil {
		return err
	}
	return h.Limits.Validate()
}

// CheckZone returns ErrInvalid for a zone that no server may have.
func CheckZone(zone string) error {
	if len(zone) > MaxZoneBytes || strings.ContainsFunc(zone, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("zone %q: must have at most %d letters, digits and signs of ASCII", zone, MaxZoneBytes)
	}
	return nil
}

// Answers returns ErrInvalid if h is not a result of q.
func (h *HelloResult) Answers(q *Hello) error {
	if h.ID != q.ID || h.Status == StatusOK && h.Limits.Min(q.Limits) != h.Limits {
		return invalid("result %d of hello %d with limits %+v, of %+v", h.ID, q.ID, h.Limits, q.Limits)
	}
	return nil
}

// Append appends the result to dst. It returns ErrInvalid and dst for one that may not be sent.
func (h *HelloResult) Append(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	at := len(dst)
	out := appendHead(dst, byte(OpHello)|answerBit, 0, len(h.Zone), h.ID)
	out = le.AppendUint32(out, uint32(h.Status))
	out = le.AppendUint32(out, h.Limits.Credits)
	out = le.AppendUint64(out, h.Epoch)
	out = append(out, make([]byte, headBytes-32)...)
	if h.Status == StatusOK {
		out = append(out, helloMagic...)
		out = append(out, h.Boot[:]...)
		out = h.Limits.append(out)
		out = append(out, h.Zone...)
	}
	var packed HelloResult
	if err := packed.Decode(out[at:]); err != nil || packed != *h {
		return dst, fmt.Errorf("pack the result of hello: %w", orChanged(err))
	}
	return out, nil
}

// Decode decodes and validates a result of hello. It returns ErrInvalid, or a VersionError.
func (h *HelloResult) Decode(b []byte) error {
	*h = HelloResult{}
	if err := checkHead(b); err != nil {
		return err
	}
	h.ID, h.Status, h.Epoch = le.Uint64(b[8:]), Status(le.Uint16(b[16:])), le.Uint64(b[24:])
	if b[1] != byte(OpHello)|answerBit || !zero(b[2:4]) || !zero(b[18:20]) || !zero(b[32:40]) {
		return invalid("frame is not a result of hello")
	}
	n := uint64(le.Uint32(b[4:]))
	if h.Status == StatusOK {
		if uint64(len(b)) != helloResultBytes+n || string(b[40:48]) != helloMagic {
			return invalid("result of hello of %d bytes", len(b))
		}
		h.Boot = [16]byte(b[48:64])
		h.Limits.decode(b[64:96])
		h.Zone = string(b[helloResultBytes:])
	} else if len(b) != headBytes || n != 0 {
		return invalid("result of hello of %d bytes with %v", len(b), h.Status)
	}
	if le.Uint32(b[20:]) != h.Limits.Credits {
		return invalid("result of hello with %d credits, its limits have %d", le.Uint32(b[20:]), h.Limits.Credits)
	}
	return h.Validate()
}

func (l *Limits) append(dst []byte) []byte {
	dst = le.AppendUint32(dst, l.Entries)
	dst = le.AppendUint32(dst, l.Keys)
	dst = le.AppendUint64(dst, l.EntryBytes)
	dst = le.AppendUint64(dst, l.RequestBytes)
	dst = le.AppendUint32(dst, l.Credits)
	return le.AppendUint32(dst, l.KeepAliveMillis)
}

func (l *Limits) decode(b []byte) {
	*l = Limits{
		Entries: le.Uint32(b), Keys: le.Uint32(b[4:]), EntryBytes: le.Uint64(b[8:]), RequestBytes: le.Uint64(b[16:]),
		Credits: le.Uint32(b[24:]), KeepAliveMillis: le.Uint32(b[28:]),
	}
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
