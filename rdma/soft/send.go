package soft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/rdma"
)

// sendWQE is a request in a send queue. The poster writes it before it publishes its position; afterwards it is the engine's.
// All that a request needs that ends well is in the first of two cache lines, to which the engine does not write: lines
// that both write cost each of them more than anything else here.
type sendWQE struct {
	wrid       uint64
	remoteAddr uint64
	only       [1]rdma.SGE // where there is but one; else they are in qp.sges
	rkey       uint32
	imm        uint32
	bytes      uint32 // of the message, mod 2^32 where tooLong
	opcode     rdma.WROpcode
	flags      rdma.SendFlags
	sges       uint8 // number of them, or 1 for an inline payload
	tooLong    bool  // for 32 bits

	found
	peer  *qp   // with received or peerFails; nil in a place that is free
	cause error // with status; nil in a place that is free
	_     [40]byte
}

// found is what the engine has found when it started a request.
type found struct {
	asked      bool // the fault plan, about this request
	received   bool // it uses slot of peer's receive queue
	peerFails  bool // the peer refused the request, which takes it to the error state
	status     rdma.WCStatus
	recvStatus rdma.WCStatus
	slot       uint32
}

// hasImm reports whether requests of that opcode carry immediate data.
func hasImm(o rdma.WROpcode) bool {
	return o == rdma.WRRDMAWriteWithImm || o == rdma.WRSendWithImm
}

// receives reports whether requests of that opcode use up a receive of the peer.
func receives(o rdma.WROpcode) bool {
	return o != rdma.WRRDMAWrite && o != rdma.WRRDMARead
}

func (q *qp) PostSend(wrs []rdma.SendWR) (int, error) {
	const call = "soft_post_send"
	n, err := q.postSend(call, wrs)
	if n > 0 {
		q.dev().engine.ring(q)
	}
	if err != nil {
		return n, fmt.Errorf("post %d requests on queue pair %d: %w", len(wrs), q.num, err)
	}
	return n, nil
}

func (q *qp) postSend(call string, wrs []rdma.SendWR) (int, error) {
	if err := q.dev().fault(OpPostSend, call); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(call); err != nil {
		return 0, err
	}
	if s := q.attr.State; s != rdma.QPSRTS && s != rdma.QPSErr {
		return 0, rdma.NewPostError(call, "state="+s.String(), unix.EINVAL, "the queue pair cannot send")
	}
	tail := q.tail.Load()
	room := tail - q.freed.Load()
	for i := range wrs {
		w := &wrs[i]
		if room == uint64(q.caps.MaxSendWR) {
			// Polled since?
			if room = tail - q.freed.Load(); room == uint64(q.caps.MaxSendWR) {
				q.tail.Store(tail)
				return i, rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x", w.WRID), unix.ENOMEM, fmt.Sprintf("all %d places are taken", q.caps.MaxSendWR))
			}
		}
		if err := q.put(call, w, tail); err != nil {
			q.tail.Store(tail)
			return i, err
		}
		tail++
		room++
	}
	q.tail.Store(tail)
	return len(wrs), nil
}

// put writes w to position pos.
func (q *qp) put(call string, w *rdma.SendWR, pos uint64) error {
	refuse := func(text string) error {
		return rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x, opcode=%s, flags=%s", w.WRID, w.Opcode, w.Flags), unix.EINVAL, text)
	}
	if w.Opcode > rdma.WRRDMARead {
		return refuse("unknown opcode")
	}
	i := pos & q.mask
	e := &q.sq[i]
	sges := len(w.SGEs)
	var bytes int64
	if w.Flags&rdma.SendInline != 0 {
		if w.Opcode == rdma.WRRDMARead || sges > 0 || len(w.Inline) > q.caps.MaxInlineBytes {
			return refuse(fmt.Sprintf("inline payloads are of up to %d bytes, of sends and writes without scatter-gather entries", q.caps.MaxInlineBytes))
		}
		sges, bytes = 1, int64(len(w.Inline))
		if bytes > 0 {
			copy(q.inline.Bytes()[int(i)*q.caps.MaxInlineBytes:], w.Inline)
		}
	} else {
		if sges > q.caps.MaxSendSGE || w.Opcode == rdma.WRRDMARead && sges > q.dev().nic.info.MaxSGERead {
			return refuse(fmt.Sprintf("%d scatter-gather entries, of %d at most", sges, q.caps.MaxSendSGE))
		}
		if sges == 1 {
			e.only[0] = w.SGEs[0]
			bytes = int64(w.SGEs[0].Length)
		} else {
			bytes = w.Bytes()
			copy(q.sges[int(i)*q.caps.MaxSendSGE:], w.SGEs)
		}
	}
	flags := w.Flags
	if q.signalAll {
		flags |= rdma.SendSignaled
	}
	// Field by field: what is cleared when a request completes need not be cleared again, and pointers cost barriers.
	e.wrid, e.remoteAddr, e.rkey, e.imm = w.WRID, w.RemoteAddr, w.RKey, w.Imm
	e.bytes, e.tooLong = uint32(bytes), bytes>>32 != 0
	e.opcode, e.flags, e.sges = w.Opcode, flags, uint8(sges)
	e.found = found{}
	return nil
}
