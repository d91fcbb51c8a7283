package asu

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Op is an operation.
type Op uint8

// Operations.
const (
	OpStore         Op = 0x01 // one entry
	OpRetrieve      Op = 0x02 // one entry
	OpDelete        Op = 0x08
	OpExist         Op = 0x0c
	OpBatchStore    Op = 0x45
	OpBatchRetrieve Op = 0x46
	OpKeepAlive     Op = 0xf4
)

// Limits of the format.
const (
	RequestBytes    = 64
	MaxPieces       = 110 // maximum number of entries in a batch of stores or retrieves
	MaxDeletes      = 254
	MaxExists       = 256
	MaxPackedBytes  = RequestBytes + MaxExists*keyBytes // size of a send slot
	AlignBytes      = 512                               // alignment of offsets and lengths
	MaxLength       = maxField - maxField%AlignBytes    // maximum length of an entry in bytes
	maxField        = 1<<24 - 1                         // maximum value of a length field
	keyBytes        = 16
	pieceBytes      = 36
	usedKeyBytes    = 8
	memoryType      = 0x40
	batchType       = 0x01
	flagResponse    = 1 << 13
	flagRequest     = 3 << 14
	flagExistBits   = 1 << 16
	flagRetry       = 1 << 31
	maxDSpec        = 31
	maxDType        = 7
	completionBytes = 16
)

var le = binary.LittleEndian

// Key is a key: 8 bytes that are not all zero, followed by 8 zero bytes.
type Key [keyBytes]byte

// Piece is an entry of a store or retrieve.
type Piece struct {
	Key       Key
	Offset    uint32 // a multiple of AlignBytes
	Length    uint32 // length of the buffer, a multiple of AlignBytes
	Addr      mem.DevAddr
	MemoryKey uint32
}

// Request is a request. Stores and retrieves have Pieces; requests that are not batches have
// exactly one. Delete and exist have Keys. Keep-alive has neither.
type Request struct {
	Op           Op
	CommandID    uint16 // not zero
	Namespace    uint32
	DSpec, DType uint8 // fields of stores
	// ResponseAddr is zero if the request has no response flag. It is always zero for a single
	// store or retrieve.
	ResponseAddr mem.DevAddr
	ResponseKey  uint32 // zero if and only if ResponseAddr is zero
	LimitedRetry bool
	ExistBits    bool   // for exist: the completion has a bit for each key
	ValueLength  uint32 // value length of a single store or retrieve in bytes
	Pieces       []Piece
	Keys         []Key
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid)
}

// single reports whether the operation's only piece is in the request itself.
func (o Op) single() bool { return o == OpStore || o == OpRetrieve }

// pieces reports whether the operation has pieces.
func (o Op) pieces() bool { return o.single() || o == OpBatchStore || o == OpBatchRetrieve }

// limit returns the maximum number of entries. It returns false if the operation does not exist.
func (o Op) limit() (int, bool) {
	switch o {
	case OpStore, OpRetrieve:
		return 1, true
	case OpBatchStore, OpBatchRetrieve:
		return MaxPieces, true
	case OpDelete:
		return MaxDeletes, true
	case OpExist:
		return MaxExists, true
	case OpKeepAlive:
		return 0, true
	}
	return 0, false
}

// Count returns the number of entries.
func (r *Request) Count() int { return len(r.Pieces) + len(r.Keys) }

// Validate returns ErrInvalid if the format does not permit the request.
func (r *Request) Validate() error {
	limit, ok := r.Op.limit()
	store := r.Op == OpStore || r.Op == OpBatchStore
	switch {
	case !ok || r.CommandID == 0:
		return invalid("operation %#x with command id %d", r.Op, r.CommandID)
	case !store && (r.DSpec != 0 || r.DType != 0) || r.DSpec > maxDSpec || r.DType > maxDType:
		return invalid("operation %#x with dspec %d and dtype %d", r.Op, r.DSpec, r.DType)
	case (r.ResponseAddr == 0) != (r.ResponseKey == 0) || r.Op.single() && r.ResponseAddr != 0:
		return invalid("operation %#x with response address %#x and key %d", r.Op, r.ResponseAddr, r.ResponseKey)
	case r.ExistBits && r.Op != OpExist || r.LimitedRetry && r.Op == OpKeepAlive:
		return invalid("operation %#x with flags of another", r.Op)
	case r.Op.single() != (r.ValueLength != 0) || r.ValueLength > maxField:
		return invalid("operation %#x with a value of %d bytes", r.Op, r.ValueLength)
	case len(r.Pieces) > 0 && !r.Op.pieces() || len(r.Keys) > 0 && r.Op.pieces() || (r.Count() == 0) != (limit == 0) || r.Count() > limit:
		return invalid("operation %#x with %d pieces and %d keys, of at most %d", r.Op, len(r.Pieces), len(r.Keys), limit)
	}
	for i := range r.Pieces {
		p := &r.Pieces[i]
		if err := p.Key.check(i); err != nil {
			return err
		}
		if p.Offset%AlignBytes != 0 || p.Length == 0 || p.Length%AlignBytes != 0 || p.Length > MaxLength || p.Addr == 0 {
			return invalid("piece %d of %d bytes at offset %d and address %#x", i, p.Length, p.Offset, p.Addr)
		}
	}
	for i := range r.Keys {
		if err := r.Keys[i].check(i); err != nil {
			return err
		}
	}
	return nil
}

func (k *Key) check(i int) error {
	if *k == (Key{}) || [keyBytes - usedKeyBytes]byte(k[usedKeyBytes:]) != [keyBytes - usedKeyBytes]byte{} {
		return invalid("entry %d with key %x", i, *k)
	}
	return nil
}

// Append appends the encoded request to dst. If the format does not permit the request, it returns
// dst and ErrInvalid.
func (r *Request) Append(dst []byte) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return dst, err
	}
	at := len(dst)
	out := append(dst, make([]byte, RequestBytes)...)
	r.packHead(out[at:])
	if !r.Op.single() {
		for i := range r.Pieces {
			out = r.Pieces[i].append(out)
		}
	}
	for i := range r.Keys {
		out = append(out, r.Keys[i][:]...)
	}
	var packed Request
	if err := packed.Decode(out[at:]); err != nil {
		return dst, fmt.Errorf("pack operation %#x: %w", r.Op, err)
	}
	if !packed.equal(r) {
		return dst, invalid("pack operation %#x: the packed bytes have other fields", r.Op)
	}
	return out, nil
}

func (r *Request) equal(o *Request) bool {
	return r.Op == o.Op && r.CommandID == o.CommandID && r.Namespace == o.Namespace && r.DSpec == o.DSpec && r.DType == o.DType &&
		r.ResponseAddr == o.ResponseAddr && r.ResponseKey == o.ResponseKey && r.LimitedRetry == o.LimitedRetry && r.ExistBits == o.ExistBits &&
		r.ValueLength == o.ValueLength && slices.Equal(r.Pieces, o.Pieces) && slices.Equal(r.Keys, o.Keys)
}

// packHead writes the 16 dwords of the request to b. b must be zeroed.
func (r *Request) packHead(b []byte) {
	dword := func(i int, v uint32) { le.PutUint32(b[4*i:], le.Uint32(b[4*i:])|v) }
	dword(0, uint32(r.Op)|uint32(r.CommandID)<<16)
	if r.Op != OpKeepAlive {
		dword(0, flagRequest)
	}
	dword(1, r.Namespace)
	dword(2, uint32(r.DSpec)<<8|uint32(r.DType)<<13)
	if r.ResponseAddr != 0 {
		dword(0, flagResponse)
		le.PutUint64(b[12:], uint64(r.ResponseAddr))
		dword(5, r.ResponseKey)
	}
	if r.LimitedRetry {
		dword(11, flagRetry)
	}
	switch {
	case r.Op.single():
		p := &r.Pieces[0]
		le.PutUint64(b[24:], uint64(p.Addr))
		dword(8, p.Length|p.MemoryKey<<24)
		dword(9, p.MemoryKey>>8|memoryType<<24)
		dword(10, p.Offset)
		dword(11, r.ValueLength)
		copy(b[48:], p.Key[:])
	case r.Op != OpKeepAlive:
		dword(8, uint32(len(r.Pieces)*pieceBytes+len(r.Keys)*keyBytes))
		dword(9, batchType<<24)
		dword(10, uint32(r.Count()))
		if r.ExistBits {
			dword(10, flagExistBits)
		}
	}
}

func (p *Piece) append(dst []byte) []byte {
	dst = le.AppendUint32(dst, p.Offset)
	dst = append(dst, p.Key[:]...)
	dst = le.AppendUint64(dst, uint64(p.Addr))
	dst = le.AppendUint32(dst, p.Length|p.MemoryKey<<24)
	return le.AppendUint32(dst, p.MemoryKey>>8|memoryType<<24)
}

// Decode decodes and validates a request. It reuses the memory of r's slices. It returns ErrInvalid
// for an invalid request.
func (r *Request) Decode(b []byte) error {
	*r = Request{Pieces: r.Pieces[:0], Keys: r.Keys[:0]}
	if len(b) < RequestBytes {
		return invalid("request of %d bytes", len(b))
	}
	dword := func(i int) uint32 { return le.Uint32(b[4*i:]) }
	d0, d2, d9, d10, d11 := dword(0), dword(2), dword(9), dword(10), dword(11)
	r.Op, r.CommandID, r.Namespace = Op(d0), uint16(d0>>16), dword(1)
	r.DSpec, r.DType = uint8(d2>>8&maxDSpec), uint8(d2>>13&maxDType)
	r.ResponseAddr, r.ResponseKey = mem.DevAddr(le.Uint64(b[12:])), dword(5)
	r.LimitedRetry = d11&flagRetry != 0
	flags := uint32(flagRequest)
	if r.Op == OpKeepAlive {
		flags = 0
	}
	if r.ResponseAddr != 0 {
		flags |= flagResponse
	}
	if d0&0xff00 != flags || d2&^0xff00 != 0 {
		return invalid("operation %#x with dwords %08x and %08x", r.Op, d0, d2)
	}
	switch _, ok := r.Op.limit(); {
	case !ok:
		return invalid("operation %#x", r.Op)
	case r.Op.single():
		if d9>>24 != memoryType || d11&^(flagRetry|maxField) != 0 || len(b) != RequestBytes {
			return invalid("operation %#x of %d bytes with dwords %08x and %08x", r.Op, len(b), d9, d11)
		}
		r.ValueLength = d11 & maxField
		r.Pieces = append(r.Pieces, Piece{
			Key: Key(b[48:64]), Offset: d10, Length: dword(8) & maxField, Addr: mem.DevAddr(le.Uint64(b[24:])), MemoryKey: dword(8)>>24 | d9<<8,
		})
	case r.Op == OpKeepAlive:
		if len(b) != RequestBytes || [40]byte(b[24:64]) != [40]byte{} {
			return invalid("keep-alive of %d bytes", len(b))
		}
	default:
		if err := r.decodeBatch(b, d10); err != nil {
			return err
		}
	}
	return r.Validate()
}

func (r *Request) decodeBatch(b []byte, d10 uint32) error {
	each := keyBytes
	if r.Op.pieces() {
		each = pieceBytes
	}
	count := int(d10 & 0xffff)
	r.ExistBits = d10&flagExistBits != 0
	if le.Uint64(b[24:]) != 0 || le.Uint32(b[36:]) != batchType<<24 || d10&^(flagExistBits|0xffff) != 0 ||
		le.Uint32(b[44:])&^flagRetry != 0 || [16]byte(b[48:64]) != [16]byte{} {
		return invalid("batch %#x has bits that are not zero", r.Op)
	}
	if le.Uint32(b[32:]) != uint32(count*each) || len(b) != RequestBytes+count*each {
		return invalid("batch %#x of %d entries, %d bytes, in %d bytes", r.Op, count, le.Uint32(b[32:]), len(b))
	}
	for b = b[RequestBytes:]; len(b) > 0; b = b[each:] {
		if each == keyBytes {
			r.Keys = append(r.Keys, Key(b[:keyBytes]))
			continue
		}
		lengths, rest := le.Uint32(b[28:]), le.Uint32(b[32:])
		if rest>>24 != memoryType {
			return invalid("piece %d of memory type %#x", len(r.Pieces), rest>>24)
		}
		r.Pieces = append(r.Pieces, Piece{
			Offset: le.Uint32(b), Key: Key(b[4:20]), Addr: mem.DevAddr(le.Uint64(b[20:])), Length: lengths & maxField, MemoryKey: lengths>>24 | rest<<8,
		})
	}
	return nil
}
