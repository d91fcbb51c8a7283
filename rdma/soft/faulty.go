package soft

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// stallLook is the interval at which the engine checks whether stalled requests were released. A
// fault plan sends no notification.
const stallLook = time.Millisecond

// noiseBytes is the maximum number of corrupted bytes in a request.
const noiseBytes = 8

// heldBack applies the fault plan to a request. The plan counts each request once. It reports
// whether the request must not start now.
func (e *engine) heldBack(q *qp, w *sendWQE) bool {
	r := &q.run
	if !w.asked {
		w.asked = true
		f, hit := e.prov.o.Faults.Hit(opOf(w.opcode))
		if !hit {
			return false
		}
		r.fault = &f
		switch f.Action {
		case fault.Fail, fault.Crash:
			w.status, w.cause = rdma.WCGeneralErr, f.Err
		case fault.Delay:
			r.due = time.Now().Add(f.Delay)
			return true
		case fault.Stall, fault.Partial, fault.Corrupt:
		}
	}
	if r.fault == nil || r.fault.Action != fault.Stall {
		return false
	}
	select {
	case <-r.fault.Released():
		return false
	default:
		r.due = time.Now().Add(stallLook)
		return true
	}
}

func opOf(o rdma.WROpcode) string {
	switch o {
	case rdma.WRSend, rdma.WRSendWithImm:
		return OpSend
	case rdma.WRRDMARead:
		return OpRead
	default:
		return OpWrite
	}
}

// damage applies a fault to the copies of a transfer.
func (e *engine) damage(t *Transfer, w *sendWQE, f *fault.Fault) {
	b := &t.Batch
	switch f.Action {
	case fault.Partial:
		w.status, w.recvStatus, w.cause = rdma.WCGeneralErr, rdma.WCGeneralErr, f.Err
		left := w.bytes / 2
		for i := range b.Dst {
			n := min(left, b.Dst[i].Len)
			b.Dst[i].Len, b.Src[i].Len = n, n
			left -= n
		}
	case fault.Corrupt:
		if len(b.Dst) == 0 {
			return
		}
		dst, src := b.Dst[0], b.Src[0]
		n := min(noiseBytes, dst.Len)
		t.add(dst.Sub(n, dst.Len-n), src.Sub(n, src.Len-n))
		at := int64(f.Rand % uint64(e.prov.noise.Len()-noiseBytes))
		b.Dst[0].Len, b.Src[0] = n, mem.Extent{Region: e.prov.noise, Off: at, Len: n}
	case fault.Fail, fault.Crash, fault.Stall, fault.Delay:
	}
}

// makeNoise returns random bytes in memory that the mover can read. They are the source of
// corrupted bytes. The caller frees them.
func makeNoise(m Mover) (*mem.Region, error) {
	const size = 1 << 12
	b, err := hostmem.Alloc(size)
	if err != nil {
		return nil, err
	}
	random := rand.NewChaCha8([32]byte{})
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], random.Uint64())
	}
	r, err := hostmem.Region(b)
	if err == nil {
		err = m.Reaches(r)
	}
	if err != nil {
		return nil, errors.Join(err, hostmem.Free(b))
	}
	return r, nil
}
