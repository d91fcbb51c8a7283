package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// executor is what running operations of one queue share. Its methods are called with what reach names held for reading,
// but for at, which belongs to whoever runs the queue.
type executor struct {
	space *space
	reach reach     // what the operation that runs may touch; space alone where it is nil
	at    time.Time // when the last operation was done, by the model
	// lastDst and lastSrc are the spans found last: pieces of a batch mostly lie in the same two.
	lastDst, lastSrc seen
	traffic          *traffic           // where to count bytes by direction; nil: nowhere
	planes           []device.PlaneDesc // of the kernel that runs
	still            bool               // nothing is moved: Options.Still
	ctas             int                // of the kernel that runs
	untold           bool               // it does not say yet what has landed: a fault will damage some of it
}

// seen remembers a span. It may have been freed since: then its bytes are nil, and it is looked up again.
type seen struct{ *span }

// bytes returns the n bytes at addr, looking at the span found last before it searches.
func (x *executor) bytes(call string, addr mem.DevAddr, n uint64, last *seen) ([]byte, error) {
	if sp := last.span; sp != nil {
		if off := uint64(addr - sp.base); off < uint64(len(sp.bytes)) && n <= uint64(len(sp.bytes))-off {
			return sp.bytes[off : off+n : off+n], nil
		}
	}
	sp := x.space.find(addr)
	if sp == nil {
		sp = x.reach.find(addr)
	}
	if sp != nil {
		if off := uint64(addr - sp.base); off < uint64(len(sp.bytes)) && n <= uint64(len(sp.bytes))-off {
			last.span = sp
			return sp.bytes[off : off+n : off+n], nil
		}
	}
	return nil, errIllegalAddress(call, fmt.Sprintf("address=%#x, bytes=%d", addr, n), x.space.explain(addr, n))
}

// view returns n bytes of arguments or descriptors at addr, which must be aligned to 8.
func (x *executor) view(call string, addr mem.DevAddr, n uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if addr%8 != 0 {
		return nil, errMisaligned(call, addr)
	}
	var none seen
	return x.bytes(call, addr, n, &none)
}

// array is view for count elements of size bytes, whose product may overflow.
func (x *executor) array(call string, addr mem.DevAddr, count, size uint64) ([]byte, error) {
	const most = 1 << 48
	if count > most/size {
		return nil, errIllegalAddress(call, fmt.Sprintf("address=%#x, elements=%d", addr, count), "more elements than there are addresses")
	}
	return x.view(call, addr, count*size)
}

// copy moves one piece. Nothing is looked at for a piece of no bytes, as hardware does not either.
func (x *executor) copy(call string, p piece) error {
	if p.n == 0 || x.still {
		return nil
	}
	dst, err := x.bytes(call, p.dst, p.n, &x.lastDst)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	src, err := x.bytes(call, p.src, p.n, &x.lastSrc)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	copy(dst, src)
	if x.traffic != nil {
		x.traffic[directionOf(x.lastDst.kind, x.lastSrc.kind)] += int64(p.n)
	}
	return nil
}

func (x *executor) copyPieces(call string, pieces []piece) error {
	for i := range pieces {
		if err := x.copy(call, pieces[i]); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
	}
	return nil
}

func (x *executor) fill(p piece, v byte) error {
	if p.n == 0 {
		return nil
	}
	b, err := x.bytes("simMemsetD8Async", p.dst, p.n, &x.lastDst)
	if err != nil {
		return err
	}
	fill(b, v)
	return nil
}

// corrupt flips a bit of one byte that o has written, as damage on the bus would. A kernel that sums what arrives on the
// device sums the damaged byte; what goes to the host is damaged after it was summed. Within the device there is no bus: there
// the kernel has read the byte wrong, and sums what it read.
func (x *executor) corrupt(o *op) error {
	r := o.fault.Rand
	p := o.one[0]
	var at uint64 // the piece's number
	switch o.kind {
	case opBatch:
		if len(o.pieces) == 0 {
			return nil
		}
		p = o.pieces[r%uint64(len(o.pieces))]
	case opLaunch:
		n := o.kernel.pieces(x, &o.args)
		if n == 0 {
			return nil
		}
		at = r % n
		p = o.kernel.piece(x, &o.args, at)
	case opCopy, opFill, opRecord, opWait, opGate, opFile:
	}
	if p.n == 0 {
		return nil
	}
	b, err := x.bytes("simCorrupt", p.dst, p.n, &x.lastDst)
	if err != nil {
		return err
	}
	off := (r >> 24) % p.n
	b[off] ^= 1 << (r >> 61)
	if o.kind != opLaunch || o.kernel.resum == nil || x.lastDst.kind != mem.KindDevice {
		return nil
	}
	return o.kernel.resum(x, &o.args, at, off/device.LeafBytes)
}

// loadPlanes reads the descriptors of the kernel that runs.
func (x *executor) loadPlanes(call string, addr mem.DevAddr, count uint64) error {
	b, err := x.array(call, addr, count, device.PlaneDescBytes)
	if err != nil {
		return fmt.Errorf("read planes: %w", err)
	}
	x.planes = x.planes[:0]
	for ; len(b) > 0; b = b[device.PlaneDescBytes:] {
		x.planes = append(x.planes, device.ReadPlaneDesc(b))
	}
	return nil
}

func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
