package sim

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// entry reads r's next entry, if it is there. The caller holds space.mu.
func (q *Queue) entry(r *resider) (w *device.ResidentWords, here bool, err error) {
	b, err := q.exec.machine.View(callResident, r.ring+mem.DevAddr(r.next%r.depth*device.ResidentEntryBytes), device.ResidentEntryBytes)
	if err != nil {
		return nil, false, err
	}
	if hostmem.LoadUint64(b) != r.next {
		return nil, false, nil
	}
	// The host may be writing it: each word is read once, in one step.
	w = new(device.ResidentWords)
	var read [device.ResidentEntryBytes]byte
	for i := range w {
		w[i] = hostmem.LoadUint64(b[8*i:])
		binary.LittleEndian.PutUint64(read[8*i:], w[i])
	}
	return w, w[0] == r.next && w[device.ResidentLast/8] == device.ResidentCheck(read[:]), nil
}

// entryWork returns the operation that an entry stands for, one that does nothing for ResidentStop. known is false if the
// entry says nothing that there is.
func entryWork(w *device.ResidentWords) (o op, known bool) {
	switch w[1] {
	case device.ResidentStop:
		return op{}, true
	case device.ResidentCopy:
		pieces := w[device.ResidentPieces]
		if pieces < 1 || pieces > device.ResidentInline {
			return op{}, false
		}
		o = op{kind: opBatch}
		for i := range int(pieces) {
			p := w[device.ResidentPiece(i):]
			o.pieces = append(o.pieces, kernel.Piece{Dst: mem.DevAddr(p[0]), Src: mem.DevAddr(p[1]), N: p[2]})
		}
		return o, true
	case device.ResidentList:
		return op{kind: opLaunch, kernel: kernel.Named(device.KernelCopyList), args: kernel.Args{w[2], w[3]}}, true
	case device.ResidentPaged:
		return op{kind: opLaunch, kernel: kernel.Named(device.KernelCopyPaged), args: kernel.Args(append(w[2:9:9], 0))}, true
	}
	return op{}, false
}

// strikeEntry decides once what fault the entry that is next has, and fails if that is to fail.
func (q *Queue) strikeEntry(r *resider, w *device.ResidentWords) error {
	if r.seq == r.next {
		return nil
	}
	r.seq = r.next
	r.fault, r.hit = q.dev.strike(OpEntry, w[1] != device.ResidentStop)
	r.served = q.dev.sched != nil && r.fault.Action == fault.Delay
	if r.hit && (r.fault.Action == fault.Fail || r.fault.Action == fault.Crash) {
		return errInjected(OpEntry, &r.fault)
	}
	return nil
}

// heldUp reports whether the entry that is next must wait.
func (r *resider) heldUp() bool {
	if !r.hit || r.seq != r.next || r.served {
		return false
	}
	return r.fault.Action == fault.Delay || r.fault.Action == fault.Stall && !isClosed(r.fault.Released())
}

// waitOut waits until the entry that is next is no longer held up.
func (q *Queue) waitOut(r *resider) error {
	over := r.fault.Action == fault.Stall && r.fault.Wait(q.dev.life) == nil ||
		r.fault.Action == fault.Delay && q.dev.sleep(r.fault.Delay)
	if !over {
		return errClosed("simCtxDestroy")
	}
	r.served = true
	return nil
}
