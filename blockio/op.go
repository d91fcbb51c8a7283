package blockio

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Version is the version of the protocol.
const Version = 1

// Op is an operation.
type Op uint8

// Operations.
const (
	OpHello Op = iota + 1 // first frame of a connection
	OpStore
	OpRetrieve
	OpExist
	OpLease   // the longest prefix of the keys that is present
	OpRenew   // leases
	OpRelease // leases
	OpDelete  // refused for leased blocks
	OpFlush   // makes completed stores of the declared identities durable
	OpStat
	OpKeepAlive
	OpCancel // after its result the server does not access memory of the cancelled request
	OpAttach // connects a queue pair to the connection
	ops
)

var opNames = [ops]string{
	OpHello: "hello", OpStore: "store", OpRetrieve: "retrieve", OpExist: "exist", OpLease: "lease", OpRenew: "renew",
	OpRelease: "release", OpDelete: "delete", OpFlush: "flush", OpStat: "stat", OpKeepAlive: "keep-alive", OpCancel: "cancel", OpAttach: "attach",
}

// String returns the operation's name.
func (o Op) String() string {
	if o > 0 && o < ops {
		return opNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// form is the form of a request's entries.
type form uint8

const (
	formNone form = iota
	formPieces
	formKeys
	formIDs
	formEndpoint
)

var forms = [ops]form{
	OpStore: formPieces, OpRetrieve: formPieces, OpExist: formKeys, OpLease: formKeys, OpDelete: formKeys,
	OpRenew: formIDs, OpRelease: formIDs, OpCancel: formIDs, OpAttach: formEndpoint,
}

// entryBytes is the length of an entry of each form.
var entryBytes = [...]int{formPieces: 96, formKeys: 40, formIDs: 8, formEndpoint: endpointBytes}

// Control reports whether requests of the operation need no credit.
func Control(o Op) bool { return o == OpCancel || o == OpKeepAlive || o == OpAttach }

// reads reports whether requests of the operation have a run, and their results replicas.
func reads(o Op) bool { return o == OpExist || o == OpLease || o == OpRetrieve }

// Status is the result of a request or of one of its entries.
type Status uint16

// Statuses.
const (
	StatusOK           Status = iota + 1
	StatusPartial             // of a request: some entries failed
	StatusInvalid             // the frame or an entry is not valid
	StatusDenied              // the credentials do not allow it
	StatusNotFound            // no such block, lease or request
	StatusExists              // the block exists with other bytes
	StatusBusy                // a retry may succeed
	StatusNoSpace             // the server is full
	StatusReadOnly            // the server does not write
	StatusCorrupt             // the bytes failed their check
	StatusMismatch            // another version, identity or layout
	StatusCanceled            // the request was cancelled
	StatusTimeout             // the remaining time is over
	StatusLeased              // a leased block is not deleted
	StatusDraining            // the server closes
	StatusNotSupported        // not by this server
	StatusFailed              // the server failed
	StatusStale               // the client's list of servers is older than the server's
	statuses
)

var statusNames = [statuses]string{
	StatusOK: "ok", StatusPartial: "partial", StatusInvalid: "invalid", StatusDenied: "denied", StatusNotFound: "not found",
	StatusExists: "exists", StatusBusy: "busy", StatusNoSpace: "no space", StatusReadOnly: "read-only", StatusCorrupt: "corrupt",
	StatusMismatch: "mismatch", StatusCanceled: "canceled", StatusTimeout: "time over", StatusLeased: "leased",
	StatusDraining: "draining", StatusNotSupported: "not supported", StatusFailed: "failed", StatusStale: "stale",
}

// Errors of statuses that package errdefs does not have.
var (
	ErrDenied  = errors.New("denied")
	ErrTimeout = errors.New("remaining time is over")
	ErrFailed  = errors.New("the server failed")
	// ErrStale is the class of StaleError.
	ErrStale = errors.New("the client's list of servers is older than the server's")
	// ErrLeased is the error of the deletion of a leased block. It wraps ErrBusy.
	ErrLeased = fmt.Errorf("the block is leased: %w", errdefs.ErrBusy)
	// ErrPartial is the error of a request of which some entries failed.
	ErrPartial = errors.New("some entries failed")
)

var statusErrors = [statuses]error{
	StatusPartial: ErrPartial, StatusInvalid: errdefs.ErrInvalid, StatusDenied: ErrDenied, StatusNotFound: errdefs.ErrNotFound,
	StatusExists: errdefs.ErrExists, StatusBusy: errdefs.ErrBusy, StatusNoSpace: errdefs.ErrNoSpace, StatusReadOnly: errdefs.ErrReadOnly,
	StatusCorrupt: errdefs.ErrCorrupt, StatusMismatch: errdefs.ErrMismatch, StatusCanceled: errdefs.ErrCanceled, StatusTimeout: ErrTimeout,
	StatusLeased: ErrLeased, StatusDraining: errdefs.ErrClosed, StatusNotSupported: errdefs.ErrNotSupported, StatusFailed: ErrFailed,
	StatusStale: ErrStale,
}

// String returns the status's name.
func (s Status) String() string {
	if s.known() {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// Err returns the error of the status, or nil for StatusOK.
func (s Status) Err() error {
	if !s.known() {
		return fmt.Errorf("%v: %w", s, errdefs.ErrMismatch)
	}
	return statusErrors[s]
}

func (s Status) known() bool { return s > 0 && s < statuses }

// StatusOf returns the status of an error.
func StatusOf(err error) Status {
	if err == nil {
		return StatusOK
	}
	if errors.Is(err, ErrLeased) { // it is ErrBusy too
		return StatusLeased
	}
	for s := StatusInvalid; s < statuses; s++ {
		if errors.Is(err, statusErrors[s]) {
			return s
		}
	}
	return StatusFailed
}

// Bounds that no negotiation exceeds.
const (
	MaxEntries         = 1024
	MaxKeys            = 8192
	MaxEntryBytes      = 8 << 20
	MaxRequestBytes    = 256 << 20
	MaxCredits         = 4096
	MaxKeepAliveMillis = 10 * 60 * 1000
	MaxMillis          = 60 * 60 * 1000 // of the remaining time and of leases
	MaxTokenBytes      = 4096
	MaxIdentities      = 64
	MaxReplicas        = 16
)

// Limits are the bounds of a connection. Hello proposes them, and its result states those that are
// in force. Every field is at least 1.
type Limits struct {
	Entries         uint32 // of a store or retrieve
	Keys            uint32 // of another request
	EntryBytes      uint64 // of an entry's length
	RequestBytes    uint64 // of all entries of a request
	Credits         uint32 // requests without a result, at the beginning of the connection
	KeepAliveMillis uint32 // a side is lost after three times this time without a frame
}

// DefaultLimits returns the limits that a client proposes.
func DefaultLimits() Limits {
	return Limits{Entries: 256, Keys: 2048, EntryBytes: MaxEntryBytes, RequestBytes: 64 << 20, Credits: 64, KeepAliveMillis: 5000}
}

// Validate returns ErrInvalid for a field out of range.
func (l *Limits) Validate() error {
	switch {
	case l.Entries == 0 || l.Entries > MaxEntries || l.Keys == 0 || l.Keys > MaxKeys || l.Credits == 0 || l.Credits > MaxCredits:
		return invalid("limits of %d entries, %d keys and %d credits", l.Entries, l.Keys, l.Credits)
	case l.EntryBytes == 0 || l.EntryBytes > MaxEntryBytes || l.RequestBytes < l.EntryBytes || l.RequestBytes > MaxRequestBytes:
		return invalid("limits of %d bytes for an entry and %d for a request", l.EntryBytes, l.RequestBytes)
	case l.KeepAliveMillis == 0 || l.KeepAliveMillis > MaxKeepAliveMillis:
		return invalid("limit of %d ms between frames", l.KeepAliveMillis)
	}
	return nil
}

// Min returns the smaller of each limit of l and o.
func (l Limits) Min(o Limits) Limits {
	return Limits{
		Entries: min(l.Entries, o.Entries), Keys: min(l.Keys, o.Keys), EntryBytes: min(l.EntryBytes, o.EntryBytes),
		RequestBytes: min(l.RequestBytes, o.RequestBytes), Credits: min(l.Credits, o.Credits), KeepAliveMillis: min(l.KeepAliveMillis, o.KeepAliveMillis),
	}
}

// BodyBytes returns the length of the longest frame within the limits after hello.
func (l *Limits) BodyBytes() uint32 {
	return headBytes + max(l.Entries*uint32(entryBytes[formPieces]), l.Keys*uint32(entryBytes[formKeys]), statBytes)
}

// IdentityHash returns the number that stands for an identity in entries: the first 8 bytes of its
// digest, little-endian.
func IdentityHash(d block.Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid)
}
