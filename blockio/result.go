package blockio

import (
	"slices"

	"github.com/kvlane/kvlane/rdma"
)

const (
	resultBytes = 24 // of an entry of store and retrieve
	statBytes   = 64
)

// EntryResult is the result of a piece.
type EntryResult struct {
	Status Status
	Bytes  uint64 // moved; zero unless Status is StatusOK
	Sum    uint64 // XXH3 of these bytes
}

// Presence is the result of exist for one key.
type Presence struct{ Present, Durable bool }

// Stat has the figures of a server, for the tenant of the connection. Bytes 0 to 63 of the frame's
// content are these fields, in this order, 8 bytes each.
type Stat struct {
	Blocks, Bytes, CapacityBytes uint64 // in memory
	Hits, Misses, Stores         uint64
	Evictions, Leased            uint64 // blocks evicted; blocks leased now
}

// Result is the result of a request after hello.
type Result struct {
	Op          Op
	Phase       bool
	ID          uint64
	Status      Status
	Credits     uint32
	Bytes       uint64 // of a store or retrieve
	Epoch       uint64 // of other operations: the server's, if it is later than that of the hello; else zero
	LeaseMillis uint32
	Replicas    uint32        // servers that are to have the request's run, 2 to MaxReplicas; zero: it is not hot
	LeaseID     uint64        // of a lease; zero if Leased is zero
	Leased      uint32        // keys that are leased, the longest prefix
	Entries     []EntryResult // of store and retrieve
	Presence    []Presence    // of exist
	Statuses    []Status      // of renew, release and delete
	Stat        Stat
	Endpoint    rdma.Endpoint // of attach
}

// DataBytes returns the number of bytes that follow the result over sockets, unless the request had
// addresses.
func (r *Result) DataBytes() uint64 {
	if r.Op != OpRetrieve {
		return 0
	}
	return r.Bytes
}

// succeeded reports whether the result has entries.
func (r *Result) succeeded() bool { return r.Status == StatusOK || r.Status == StatusPartial }

// perEntry reports whether the operation has a status for each entry.
func perEntry(op Op) bool {
	return op == OpStore || op == OpRetrieve || op == OpRenew || op == OpRelease || op == OpDelete
}

// Validate returns ErrInvalid for a result that may not be sent within the limits.
func (r *Result) Validate(l *Limits) error {
	if r.Op <= OpHello || r.Op >= ops {
		return invalid("result of %v", r.Op)
	}
	ok := r.succeeded()
	switch {
	case r.ID == 0 || r.Credits > MaxCredits || !r.Status.known() || r.Status == StatusPartial && !perEntry(r.Op):
		return invalid("result %d of %v with %v and %d credits", r.ID, r.Op, r.Status, r.Credits)
	case r.Replicas == 1 || r.Replicas > MaxReplicas || r.Replicas > 0 && !reads(r.Op):
		return invalid("result of %v with %d replicas", r.Op, r.Replicas)
	case r.Epoch != 0 && forms[r.Op] == formPieces:
		return invalid("result of %v with an epoch", r.Op)
	case r.LeaseMillis > MaxMillis || r.LeaseMillis != 0 && r.Op != OpLease && r.Op != OpRenew:
		return invalid("result of %v with a lease of %d ms", r.Op, r.LeaseMillis)
	case (r.LeaseID != 0) != (r.Leased != 0) || r.Leased != 0 && (r.Op != OpLease || r.LeaseMillis == 0) || r.Leased > l.Keys:
		return invalid("result of %v with %d keys in lease %d", r.Op, r.Leased, r.LeaseID)
	case r.Op == OpLease && r.Leased == 0 && r.LeaseMillis != 0:
		return invalid("result of a lease of no keys with %d ms", r.LeaseMillis)
	case len(r.Entries) > 0 && forms[r.Op] != formPieces || len(r.Presence) > 0 && r.Op != OpExist,
		len(r.Statuses) > 0 && r.Op != OpRenew && r.Op != OpRelease && r.Op != OpDelete:
		return invalid("result of %v with entries of another operation", r.Op)
	case r.Endpoint != rdma.Endpoint{} && (r.Op != OpAttach || !ok):
		return invalid("result of %v with an endpoint", r.Op)
	case r.Stat != Stat{} && (r.Op != OpStat || !ok):
		return invalid("result of %v with figures", r.Op)
	case ok != (r.count() > 0) && (perEntry(r.Op) || r.Op == OpExist || r.Op == OpAttach):
		return invalid("result of %v with %v and %d entries", r.Op, r.Status, r.count())
	case !ok && (r.LeaseMillis != 0 || r.Leased != 0):
		return invalid("result of %v with %v and a lease", r.Op, r.Status)
	}
	if ok && r.Op == OpAttach {
		return validEndpoint(&r.Endpoint)
	}
	return r.validateEntries(l)
}

func (r *Result) validateEntries(l *Limits) error {
	if len(r.Entries) > int(l.Entries) || len(r.Presence) > int(l.Keys) || len(r.Statuses) > int(l.Keys) {
		return invalid("result of %v with %d entries", r.Op, r.count())
	}
	bytes, failed := uint64(0), false
	for i := range r.Entries {
		e := &r.Entries[i]
		if !e.Status.known() || e.Status == StatusPartial || (e.Status == StatusOK) != (e.Bytes > 0) || e.Bytes > l.EntryBytes || e.Bytes == 0 && e.Sum != 0 {
			return invalid("result of entry %d with %v and %d bytes", i, e.Status, e.Bytes)
		}
		bytes, failed = bytes+e.Bytes, failed || e.Status != StatusOK
	}
	for i, s := range r.Statuses {
		if !s.known() || s == StatusPartial {
			return invalid("result of entry %d with %v", i, s)
		}
		failed = failed || s != StatusOK
	}
	for i, p := range r.Presence {
		if p.Durable && !p.Present {
			return invalid("result of key %d: durable, but not present", i)
		}
	}
	if bytes != r.Bytes || bytes > l.RequestBytes || r.succeeded() && failed != (r.Status == StatusPartial) {
		return invalid("result of %v with %v and %d bytes, of %d in the entries", r.Op, r.Status, r.Bytes, bytes)
	}
	return nil
}

// Answers returns ErrInvalid if r is not a result of q.
func (r *Result) Answers(q *Request) error {
	if r.Op != q.Op || r.ID != q.ID || r.Phase != q.Phase || r.Replicas != 0 && q.Run == 0 {
		return invalid("result %d of %v, phase %t, for request %d of %v, phase %t", r.ID, r.Op, r.Phase, q.ID, q.Op, q.Phase)
	}
	if !r.succeeded() {
		return nil
	}
	if n := r.count(); (perEntry(r.Op) || r.Op == OpExist) && n != q.Count() || int(r.Leased) > len(q.Keys) {
		return invalid("result of %v with %d entries of %d, %d of them leased", r.Op, n, q.Count(), r.Leased)
	}
	for i := range r.Entries {
		if e := &r.Entries[i]; e.Status == StatusOK && e.Bytes != q.Entries[i].Length {
			return invalid("result of entry %d of %d bytes, of %d", i, e.Bytes, q.Entries[i].Length)
		}
	}
	return nil
}

// count returns the number of entries in the frame.
func (r *Result) count() int {
	return len(r.Entries) + len(r.Presence) + len(r.Statuses) + int(r.Leased) + endpoints(&r.Endpoint)
}

func (r *Result) equal(o *Result) bool {
	return r.Op == o.Op && r.Phase == o.Phase && r.ID == o.ID && r.Status == o.Status && r.Credits == o.Credits && r.Bytes == o.Bytes && r.Epoch == o.Epoch &&
		r.LeaseMillis == o.LeaseMillis && r.Replicas == o.Replicas && r.LeaseID == o.LeaseID && r.Leased == o.Leased && r.Stat == o.Stat && r.Endpoint == o.Endpoint &&
		slices.Equal(r.Entries, o.Entries) && slices.Equal(r.Presence, o.Presence) && slices.Equal(r.Statuses, o.Statuses)
}

func (r *Result) append(dst []byte) []byte {
	dst = appendHead(dst, byte(r.Op)|answerBit, flagIf(r.Phase, flagPhase), r.count(), r.ID)
	dst = le.AppendUint16(dst, uint16(r.Status))
	dst = le.AppendUint16(dst, 0)
	dst = le.AppendUint32(dst, r.Credits)
	if forms[r.Op] == formPieces {
		dst = le.AppendUint64(dst, r.Bytes)
	} else {
		dst = le.AppendUint64(dst, r.Epoch)
	}
	dst = le.AppendUint32(dst, r.LeaseMillis)
	dst = le.AppendUint32(dst, r.Replicas)
	for i := range r.Entries {
		e := &r.Entries[i]
		dst = le.AppendUint64(dst, uint64(e.Status))
		dst = le.AppendUint64(dst, e.Bytes)
		dst = le.AppendUint64(dst, e.Sum)
	}
	if n := len(r.Presence); n > 0 {
		at := len(dst)
		dst = append(dst, make([]byte, 2*bitBytes(n))...)
		present, durable := dst[at:at+bitBytes(n)], dst[at+bitBytes(n):]
		for i, p := range r.Presence {
			setBit(present, i, p.Present)
			setBit(durable, i, p.Durable)
		}
	}
	if r.Leased > 0 {
		dst = le.AppendUint64(dst, r.LeaseID)
	}
	for _, s := range r.Statuses {
		dst = le.AppendUint16(dst, uint16(s))
	}
	if r.Op == OpAttach && r.succeeded() {
		dst = appendEndpoint(dst, &r.Endpoint)
	}
	if r.Op == OpStat && r.succeeded() {
		s := &r.Stat
		for _, n := range []uint64{s.Blocks, s.Bytes, s.CapacityBytes, s.Hits, s.Misses, s.Stores, s.Evictions, s.Leased} {
			dst = le.AppendUint64(dst, n)
		}
	}
	return dst
}

func bitBytes(n int) int { return (n + 7) / 8 }

func setBit(b []byte, i int, on bool) {
	if on {
		b[i/8] |= 1 << (i % 8)
	}
}

func bit(b []byte, i int) bool { return b[i/8]>>(i%8)&1 != 0 }

// Decode decodes a result after hello, and validates it. It reuses the memory of r's slices. It
// returns ErrInvalid, or a VersionError.
func (r *Result) Decode(b []byte, l *Limits) error {
	*r = Result{Entries: r.Entries[:0], Presence: r.Presence[:0], Statuses: r.Statuses[:0]}
	if err := checkHead(b); err != nil {
		return err
	}
	flags, count, content := le.Uint16(b[2:]), le.Uint32(b[4:]), b[headBytes:]
	r.Op, r.Phase, r.ID, r.Status = Op(b[1]&^answerBit), flags&flagPhase != 0, le.Uint64(b[8:]), Status(le.Uint16(b[16:]))
	r.Credits, r.LeaseMillis, r.Replicas = le.Uint32(b[20:]), le.Uint32(b[32:]), le.Uint32(b[36:])
	switch {
	case r.Op <= OpHello || r.Op >= ops || b[1]&answerBit == 0:
		return invalid("result of operation %#x", b[1])
	case flags&^flagPhase != 0 || le.Uint16(b[18:]) != 0:
		return invalid("result of %v with unknown flags", r.Op)
	case uint64(len(content)) != r.contentBytes(uint64(count)):
		return invalid("result of %v with %d entries in %d bytes", r.Op, count, len(b))
	}
	if r.Epoch = le.Uint64(b[24:]); forms[r.Op] == formPieces {
		r.Bytes, r.Epoch = r.Epoch, 0
	}
	if err := r.decodeContent(content, int(count)); err != nil {
		return err
	}
	return r.Validate(l)
}

// contentBytes returns the length of a result's content with count entries.
func (r *Result) contentBytes(count uint64) uint64 {
	switch {
	case r.Op == OpStat && r.succeeded() && count == 0:
		return statBytes
	case count == 0:
		return 0
	case r.Op == OpLease:
		return 8
	case r.Op == OpExist:
		return 2 * ((count + 7) / 8)
	case r.Op == OpAttach:
		return count * endpointBytes
	case forms[r.Op] == formPieces:
		return count * resultBytes
	case perEntry(r.Op):
		return 2 * count
	}
	return ^uint64(0) // no result of this operation has entries
}

func (r *Result) decodeContent(b []byte, count int) error {
	switch {
	case r.Op == OpStat && len(b) > 0:
		s := &r.Stat
		for i, p := range []*uint64{&s.Blocks, &s.Bytes, &s.CapacityBytes, &s.Hits, &s.Misses, &s.Stores, &s.Evictions, &s.Leased} {
			*p = le.Uint64(b[8*i:])
		}
	case r.Op == OpAttach && len(b) > 0:
		return decodeEndpoint(&r.Endpoint, b)
	case r.Op == OpLease && count > 0:
		r.Leased, r.LeaseID = uint32(count), le.Uint64(b)
	case forms[r.Op] == formPieces:
		for ; len(b) > 0; b = b[resultBytes:] {
			e := EntryResult{Status: Status(le.Uint16(b)), Bytes: le.Uint64(b[8:]), Sum: le.Uint64(b[16:])}
			if le.Uint64(b) != uint64(e.Status) {
				return invalid("result of entry %d has bytes that are not zero", len(r.Entries))
			}
			r.Entries = append(r.Entries, e)
		}
	case r.Op == OpExist:
		present, durable := b[:bitBytes(count)], b[bitBytes(count):]
		for i := count; i < 8*len(present); i++ {
			if bit(present, i) || bit(durable, i) {
				return invalid("result of exist has a bit for key %d of %d", i, count)
			}
		}
		for i := range count {
			r.Presence = append(r.Presence, Presence{bit(present, i), bit(durable, i)})
		}
	default:
		for ; len(b) > 0; b = b[2:] {
			r.Statuses = append(r.Statuses, Status(le.Uint16(b)))
		}
	}
	return nil
}
