package asu

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Status is the status of a completion. It has 15 bits.
type Status uint16

// Statuses.
const (
	StatusOK         Status = 0x000
	StatusBadOp      Status = 0x001
	StatusBadField   Status = 0x002
	StatusInternal   Status = 0x006
	StatusWriteFault Status = 0x280
	StatusReadError  Status = 0x281
	StatusNoKey      Status = 0x701
	StatusTooLarge   Status = 0x712
	StatusTimeout    Status = 0x716
	StatusKeyExists  Status = 0x723
	StatusBusy       Status = 0x731
	StatusResults    Status = 0x732 // the status of each entry is in the results
	maxStatus               = 1<<15 - 1
)

// EntryStatus is the status of an entry.
type EntryStatus uint8

// Statuses of entries. OpDelete uses EntryOK and EntryFailed, OpExist uses EntryOK and EntryNoKey.
const (
	EntryOK EntryStatus = iota
	EntryRetry
	EntryFailed
	EntryNoKey
	EntryNoData
	entryStatuses
)

var errServer = errors.New("the server failed")

var statusErrors = map[Status]error{
	StatusBadOp: errdefs.ErrNotSupported, StatusBadField: errdefs.ErrInvalid, StatusInternal: errServer, StatusWriteFault: errServer,
	StatusReadError: errServer, StatusNoKey: errdefs.ErrNotFound, StatusTooLarge: errdefs.ErrInvalid, StatusTimeout: errServer,
	StatusKeyExists: errdefs.ErrExists, StatusBusy: errdefs.ErrBusy,
}

// Err returns the error for a status, or nil for StatusOK and StatusResults.
func (s Status) Err() error {
	switch err := statusErrors[s]; {
	case s == StatusOK || s == StatusResults:
		return nil
	case err != nil:
		return fmt.Errorf("status %#03x: %w", uint16(s), err)
	}
	return fmt.Errorf("unknown status %#03x: %w", uint16(s), errdefs.ErrMismatch)
}

// Completion is the completion of a request. Entries is the status of each entry of the request. It
// is empty if Status is an error.
type Completion struct {
	CommandID uint16
	Status    Status
	Entries   []EntryStatus
}

// CompletionBytes returns the length of the completion of a request with n entries.
func CompletionBytes(op Op, n int) int {
	if op.pieces() {
		return completionBytes + (n+1)/2
	}
	return completionBytes + (n+7)/8
}

// Append appends the packed completion of r to dst. It returns ErrInvalid and dst if c is not a
// completion of r. Unused bits are zero.
func (c *Completion) Append(dst []byte, r *Request) ([]byte, error) {
	failed := c.Status.Err() != nil
	if c.CommandID == 0 || c.CommandID != r.CommandID || c.Status > maxStatus || failed && len(c.Entries) > 0 || !failed && len(c.Entries) != r.Count() {
		return dst, invalid("completion %d of request %d with status %#03x and %d of %d entries", c.CommandID, r.CommandID, uint16(c.Status), len(c.Entries), r.Count())
	}
	at := len(dst)
	out := append(dst, make([]byte, CompletionBytes(r.Op, r.Count()))...)
	b := out[at:]
	existing, prefix, bad := 0, 0, false
	for i, s := range c.Entries {
		good := s == EntryOK
		bad = bad || !good
		switch {
		case s >= entryStatuses || r.Op == OpDelete && !good && s != EntryFailed || r.Op == OpExist && !good && s != EntryNoKey:
			return dst, invalid("entry %d of operation %#x with status %d", i, r.Op, s)
		case r.Op.pieces():
			b[completionBytes+i/2] |= byte(s) << (4 * (i % 2))
		case good == (r.Op == OpExist):
			b[completionBytes+i/8] |= 1 << (i % 8)
		}
		if good {
			existing++
			if prefix == i {
				prefix++
			}
		}
	}
	if !failed && bad != (c.Status == StatusResults) {
		return dst, invalid("completion with status %#03x, whose entries do not agree", uint16(c.Status))
	}
	if r.Op == OpExist {
		if !r.ExistBits && prefix != existing {
			return dst, invalid("completion of %d existing keys, the first %d of which are a prefix", existing, prefix)
		}
		le.PutUint32(b, uint32(existing))
	}
	le.PutUint32(b[12:], uint32(c.CommandID)|uint32(c.Status)<<17)
	return out, nil
}

// Decode decodes the completion of r. It reuses the memory of c.Entries. It returns ErrInvalid for
// bytes that are not a completion of r, for example because dword 3 does not have the command ID
// yet.
func (c *Completion) Decode(b []byte, r *Request) error {
	*c = Completion{Entries: c.Entries[:0]}
	n := r.Count()
	if len(b) < CompletionBytes(r.Op, n) {
		return invalid("completion of %d bytes, of %d", len(b), CompletionBytes(r.Op, n))
	}
	d0, d3 := le.Uint32(b), le.Uint32(b[12:])
	if c.CommandID, c.Status = uint16(d3), Status(d3>>17); c.CommandID != r.CommandID || c.CommandID == 0 {
		return invalid("completion of command %d, not %d", c.CommandID, r.CommandID)
	}
	existing := int(d0 & 0xffff)
	if r.Op == OpExist && c.Status == StatusResults && existing > n {
		return invalid("completion with %d existing keys of %d", existing, n)
	}
	if c.Status.Err() != nil {
		return nil
	}
	for i := range n {
		s := EntryOK
		// result of OpDelete, or of OpExist with ExistBits
		bit := b[completionBytes+i/8]>>(i%8)&1 != 0
		switch {
		case c.Status == StatusOK:
		case r.Op.pieces():
			s = EntryStatus(b[completionBytes+i/2] >> (4 * (i % 2)) & 15)
		case r.Op == OpDelete && bit:
			s = EntryFailed
		case r.Op == OpExist && (r.ExistBits && !bit || !r.ExistBits && i >= existing):
			s = EntryNoKey
		}
		if s >= entryStatuses {
			return invalid("entry %d with status %d", i, s)
		}
		c.Entries = append(c.Entries, s)
	}
	return nil
}
