package sim

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/mem"
)

// executor is the state that running operations of one queue share. Callers of its methods hold the
// locks of reach for reading. The goroutine that runs the queue owns at.
type executor struct {
	space *space
	reach reach     // memory that the running operation may access; if nil, only space
	at    time.Time // time at which the last operation completed, in model time
	// lastDst and lastSrc cache the spans that were found last. Most pieces of a batch are in the
	// same two.
	lastDst, lastSrc seen
	lastWord         seen           // cache of the other span that kernels accessed last
	traffic          traffic        // bytes that the running operation has copied
	machine          kernel.Machine // accesses memory through this executor
}

var _ kernel.Memory = (*executor)(nil)

// Bytes implements kernel.Memory.
func (x *executor) Bytes(call string, addr mem.DevAddr, n uint64) ([]byte, error) {
	return x.bytes(call, addr, n, &x.lastWord)
}

// seen caches a span. If the span was freed since, its bytes are nil and the span is looked up
// again.
type seen struct{ *span }

// bytes returns the n bytes at addr. It tries the cached span before it searches.
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

// Copy implements kernel.Memory.
func (x *executor) Copy(call string, p kernel.Piece) error {
	dst, err := x.bytes(call, p.Dst, p.N, &x.lastDst)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	src, err := x.bytes(call, p.Src, p.N, &x.lastSrc)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	copy(dst, src)
	x.traffic[directionOf(x.lastDst.kind, x.lastSrc.kind)] += int64(p.N)
	return nil
}

func (x *executor) copyPieces(call string, pieces []kernel.Piece) error {
	for i, p := range pieces {
		if p.N == 0 || x.machine.Still { // hardware does not check the addresses of an empty piece
			continue
		}
		if err := x.Copy(call, p); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
	}
	return nil
}

func (x *executor) fill(p kernel.Piece, v byte) error {
	if p.N == 0 {
		return nil
	}
	b, err := x.bytes("simMemsetD8Async", p.Dst, p.N, &x.lastDst)
	if err != nil {
		return err
	}
	fill(b, v)
	return nil
}

// corrupt flips one bit of a byte that o has written, like damage on the bus. Sums of bytes that
// arrive on the device include the damage. Bytes copied to the host are damaged after they were
// summed. Copies within the device use no bus: there the damage stands for a wrong read by the
// kernel, which sums the wrong byte.
func (x *executor) corrupt(o *op) error {
	r := o.fault.Rand
	p := o.one[0]
	var at uint64 // index of the piece
	switch o.kind {
	case opBatch:
		if len(o.pieces) == 0 {
			return nil
		}
		p = o.pieces[r%uint64(len(o.pieces))]
	case opLaunch:
		n := o.kernel.Pieces(&x.machine, &o.args)
		if n == 0 {
			return nil
		}
		at = r % n
		p = o.kernel.Piece(&x.machine, &o.args, at)
	case opCopy, opFill, opRecord, opWait, opGate, opStore, opFile:
	}
	if p.N == 0 {
		return nil
	}
	b, err := x.bytes("simCorrupt", p.Dst, p.N, &x.lastDst)
	if err != nil {
		return err
	}
	off := (r >> 24) % p.N
	b[off] ^= 1 << (r >> 61)
	if o.kind != opLaunch || o.kernel.Resum == nil || x.lastDst.kind != mem.KindDevice {
		return nil
	}
	return o.kernel.Resum(&x.machine, &o.args, at, off/device.LeafBytes)
}
