package blockio

import (
	"encoding/binary"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

const (
	headBytes   = 40
	answerBit   = 0x80 // of the operation, in results
	flagPhase   = 1
	flagAddress = 2
	flagAnswer  = 4 // the request has a response address
)

var le = binary.LittleEndian

// Entry is a contiguous piece of a block's image, to be stored or retrieved.
type Entry struct {
	Key                  block.Key
	Identity             uint64 // IdentityHash of a declared identity
	Offset, Length       uint64 // bytes in the image, header included
	FirstShard, EndShard uint32 // shards that the bytes touch; both zero for the header alone
	Sum                  uint64 // XXH3 of the bytes of a store; zero for a retrieve
	Addr                 mem.DevAddr
	MemoryKey            uint32
}

// KeyEntry names a block.
type KeyEntry struct {
	Key      block.Key
	Identity uint64
}

// Request is a request after hello. Operations use one of Entries, Keys and IDs, or none.
type Request struct {
	Op              Op
	Phase           bool
	Addressed       bool // the entries have addresses, which the server reads or writes
	ID              uint64
	RemainingMillis uint32
	ResponseAddr    mem.DevAddr // zero: the result is sent
	ResponseKey     uint32
	LeaseMillis     uint32        // of lease and renew
	Run             uint32        // of the first entry of exist, lease or retrieve; zero: unknown
	Entries         []Entry       // of store and retrieve
	Keys            []KeyEntry    // of exist, lease and delete
	IDs             []uint64      // of renew, release and cancel
	Endpoint        rdma.Endpoint // of attach
}

// Bytes returns the sum of the lengths of the entries.
func (r *Request) Bytes() (n uint64) {
	for i := range r.Entries {
		n += r.Entries[i].Length
	}
	return n
}

// DataBytes returns the number of bytes that follow the request over sockets.
func (r *Request) DataBytes() uint64 {
	if r.Op != OpStore || r.Addressed {
		return 0
	}
	return r.Bytes()
}

// Count returns the number of entries.
func (r *Request) Count() int {
	return len(r.Entries) + len(r.Keys) + len(r.IDs) + endpoints(&r.Endpoint)
}

// Validate returns ErrInvalid for a request that may not be sent within the limits. Only the server
// knows identities and layouts.
func (r *Request) Validate(l *Limits) error {
	if r.Op <= OpHello || r.Op >= ops {
		return invalid("request of %v", r.Op)
	}
	switch form := forms[r.Op]; {
	case r.ID == 0:
		return invalid("%v without an id", r.Op)
	case r.RemainingMillis == 0 || r.RemainingMillis > MaxMillis:
		return invalid("%v with %d ms, of 1 to %d", r.Op, r.RemainingMillis, MaxMillis)
	case r.ResponseAddr == 0 && r.ResponseKey != 0:
		return invalid("%v with a response key, but no address", r.Op)
	case (r.LeaseMillis != 0) != (r.Op == OpLease || r.Op == OpRenew) || r.LeaseMillis > MaxMillis:
		return invalid("%v with a lease of %d ms", r.Op, r.LeaseMillis)
	case r.Run != 0 && !reads(r.Op):
		return invalid("%v of a run", r.Op)
	case r.Addressed && form != formPieces:
		return invalid("%v with addresses of memory", r.Op)
	case r.Endpoint != rdma.Endpoint{} && form != formEndpoint:
		return invalid("%v with an endpoint", r.Op)
	case len(r.Entries) > 0 && form != formPieces || len(r.Keys) > 0 && form != formKeys || len(r.IDs) > 0 && form != formIDs:
		return invalid("%v with %d pieces, %d keys and %d ids", r.Op, len(r.Entries), len(r.Keys), len(r.IDs))
	case form != formNone && r.Count() == 0 || r.Count() > r.most(l):
		return invalid("%v of %d entries, of 1 to %d", r.Op, r.Count(), r.most(l))
	}
	return r.validateEntries(l)
}

// most returns the maximum number of entries.
func (r *Request) most(l *Limits) int {
	switch {
	case r.Op == OpCancel || r.Op == OpAttach:
		return 1
	case forms[r.Op] == formNone:
		return 0
	case forms[r.Op] == formPieces:
		return int(l.Entries)
	}
	return int(l.Keys)
}

func (r *Request) validateEntries(l *Limits) error {
	if r.Op == OpAttach {
		return validEndpoint(&r.Endpoint)
	}
	bytes := uint64(0)
	for i := range r.Entries {
		e := &r.Entries[i]
		switch {
		case e.Key == block.Key{} || e.Identity == 0:
			return invalid("entry %d without a key or an identity", i)
		case e.Length == 0 || e.Length > l.EntryBytes:
			return invalid("entry %d of %d bytes, of 1 to %d", i, e.Length, l.EntryBytes)
		case e.Offset > block.MaxImageBytes-e.Length:
			return invalid("entry %d of %d bytes at %d", i, e.Length, e.Offset)
		case e.EndShard > block.MaxShards || e.FirstShard >= e.EndShard && (e.FirstShard != 0 || e.EndShard != 0):
			return invalid("entry %d of shards %d to %d", i, e.FirstShard, e.EndShard)
		case r.Op == OpRetrieve && e.Sum != 0:
			return invalid("entry %d of a retrieve with a checksum", i)
		case (e.Addr != 0) != r.Addressed || !r.Addressed && e.MemoryKey != 0:
			return invalid("entry %d with address %#x and memory key %d", i, e.Addr, e.MemoryKey)
		case uint64(e.Addr) > ^uint64(0)-e.Length:
			return invalid("entry %d of %d bytes at address %#x", i, e.Length, e.Addr)
		}
		if bytes += e.Length; bytes > l.RequestBytes {
			return invalid("%v of more than %d bytes", r.Op, l.RequestBytes)
		}
	}
	for i := range r.Keys {
		if r.Keys[i].Key == (block.Key{}) || r.Keys[i].Identity == 0 {
			return invalid("entry %d without a key or an identity", i)
		}
	}
	if i := slices.Index(r.IDs, 0); i >= 0 || r.Op == OpCancel && r.IDs[0] == r.ID {
		return invalid("%v with an id that names nothing", r.Op)
	}
	return nil
}

// equal reports whether the requests have the same fields.
func (r *Request) equal(o *Request) bool {
	return r.Op == o.Op && r.Phase == o.Phase && r.Addressed == o.Addressed && r.ID == o.ID && r.RemainingMillis == o.RemainingMillis &&
		r.ResponseAddr == o.ResponseAddr && r.ResponseKey == o.ResponseKey && r.LeaseMillis == o.LeaseMillis && r.Run == o.Run &&
		slices.Equal(r.Entries, o.Entries) && slices.Equal(r.Keys, o.Keys) && slices.Equal(r.IDs, o.IDs) && r.Endpoint == o.Endpoint
}

func flagIf(b bool, f uint16) uint16 {
	if b {
		return f
	}
	return 0
}

// appendHead appends the fields that every frame has.
func appendHead(dst []byte, op byte, flags uint16, count int, id uint64) []byte {
	dst = append(dst, Version, op)
	dst = le.AppendUint16(dst, flags)
	dst = le.AppendUint32(dst, uint32(count))
	return le.AppendUint64(dst, id)
}

func (r *Request) append(dst []byte) []byte {
	flags := flagIf(r.Phase, flagPhase) | flagIf(r.Addressed, flagAddress) | flagIf(r.ResponseAddr != 0, flagAnswer)
	dst = appendHead(dst, byte(r.Op), flags, r.Count(), r.ID)
	dst = le.AppendUint32(dst, r.RemainingMillis)
	dst = le.AppendUint32(dst, r.ResponseKey)
	dst = le.AppendUint64(dst, uint64(r.ResponseAddr))
	dst = le.AppendUint32(dst, r.LeaseMillis)
	dst = le.AppendUint32(dst, r.Run)
	for i := range r.Entries {
		e := &r.Entries[i]
		dst = append(dst, e.Key[:]...)
		dst = le.AppendUint64(dst, e.Identity)
		dst = le.AppendUint64(dst, e.Offset)
		dst = le.AppendUint64(dst, e.Length)
		dst = le.AppendUint32(dst, e.FirstShard)
		dst = le.AppendUint32(dst, e.EndShard)
		dst = le.AppendUint64(dst, e.Sum)
		dst = le.AppendUint64(dst, uint64(e.Addr))
		dst = le.AppendUint32(dst, e.MemoryKey)
		dst = append(dst, make([]byte, 12)...)
	}
	for i := range r.Keys {
		dst = append(dst, r.Keys[i].Key[:]...)
		dst = le.AppendUint64(dst, r.Keys[i].Identity)
	}
	for _, id := range r.IDs {
		dst = le.AppendUint64(dst, id)
	}
	if r.Op == OpAttach {
		dst = appendEndpoint(dst, &r.Endpoint)
	}
	return dst
}

// checkHead checks the version and the length of a frame's head.
func checkHead(b []byte) error {
	switch {
	case len(b) < headBytes:
		return invalid("frame of %d bytes", len(b))
	case b[0] != Version:
		return &VersionError{Version: b[0]}
	}
	return nil
}

// Decode decodes a request after hello, and validates it. It reuses the memory of r's slices. It
// returns ErrInvalid, or a VersionError. The ID is set if the frame has a head, so that a server
// can refuse the request.
func (r *Request) Decode(b []byte, l *Limits) error {
	*r = Request{Entries: r.Entries[:0], Keys: r.Keys[:0], IDs: r.IDs[:0]}
	if err := checkHead(b); err != nil {
		return err
	}
	flags, count := le.Uint16(b[2:]), le.Uint32(b[4:])
	r.Op, r.ID, r.RemainingMillis = Op(b[1]), le.Uint64(b[8:]), le.Uint32(b[16:])
	r.ResponseKey, r.ResponseAddr, r.LeaseMillis = le.Uint32(b[20:]), mem.DevAddr(le.Uint64(b[24:])), le.Uint32(b[32:])
	r.Run = le.Uint32(b[36:])
	r.Phase, r.Addressed = flags&flagPhase != 0, flags&flagAddress != 0
	if r.Op <= OpHello || r.Op >= ops {
		return invalid("request of %v", r.Op)
	}
	switch {
	case flags&^(flagPhase|flagAddress|flagAnswer) != 0:
		return invalid("%v with unknown flags", r.Op)
	case (flags&flagAnswer != 0) != (r.ResponseAddr != 0):
		return invalid("%v with response address %#x", r.Op, r.ResponseAddr)
	case uint64(count)*uint64(entryBytes[forms[r.Op]]) != uint64(len(b)-headBytes) || count > 0 && forms[r.Op] == formNone:
		return invalid("%v of %d entries in %d bytes", r.Op, count, len(b))
	case int64(count) > int64(r.most(l)):
		return invalid("%v of %d entries, of at most %d", r.Op, count, r.most(l))
	}
	if err := r.decodeEntries(b[headBytes:]); err != nil {
		return err
	}
	return r.Validate(l)
}

func (r *Request) decodeEntries(b []byte) error {
	form := forms[r.Op]
	for ; len(b) > 0; b = b[entryBytes[form]:] {
		switch form {
		case formPieces:
			if le.Uint64(b[84:])|uint64(le.Uint32(b[92:])) != 0 {
				return invalid("entry %d has bytes that are not zero", len(r.Entries))
			}
			r.Entries = append(r.Entries, Entry{
				Key: block.Key(b[:32]), Identity: le.Uint64(b[32:]), Offset: le.Uint64(b[40:]), Length: le.Uint64(b[48:]),
				FirstShard: le.Uint32(b[56:]), EndShard: le.Uint32(b[60:]), Sum: le.Uint64(b[64:]),
				Addr: mem.DevAddr(le.Uint64(b[72:])), MemoryKey: le.Uint32(b[80:]),
			})
		case formKeys:
			r.Keys = append(r.Keys, KeyEntry{Key: block.Key(b[:32]), Identity: le.Uint64(b[32:])})
		case formEndpoint:
			return decodeEndpoint(&r.Endpoint, b)
		case formIDs, formNone:
			r.IDs = append(r.IDs, le.Uint64(b))
		}
	}
	return nil
}
