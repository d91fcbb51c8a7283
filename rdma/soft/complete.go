package soft

import (
	"slices"

	"github.com/kvlane/kvlane/rdma"
)

// finish completes the oldest started request of q. Its transfer must be done.
func (e *engine) finish(q *qp) {
	r := &q.run
	r.mu.Lock()
	t := r.inflight[0]
	r.inflight = slices.Delete(r.inflight, 0, 1)
	if t.read {
		r.reads--
	}
	w := &q.sq[t.pos&q.mask]
	if t.err != nil && w.status == rdma.WCSuccess {
		w.status, w.recvStatus, w.cause = rdma.WCGeneralErr, rdma.WCGeneralErr, t.err
	}
	q.complete(w, t.pos)
	r.retired++
	r.mu.Unlock()
	// after the completion: if a reset is waiting for the transfer, it drops the completion
	e.end(t)
}

// complete reports the result of the request at position pos to both sides. Afterwards the poster
// owns w again.
func (q *qp) complete(w *sendWQE, pos uint64) {
	status, cause, peer := w.status, w.cause, w.peer
	if w.received {
		peer.deliver(w, q)
	}
	switch q.currentState() {
	case rdma.QPSReset:
		return // no completion was requested
	case rdma.QPSErr:
		status = rdma.WCWRFlushErr
	default:
		if status != rdma.WCSuccess {
			q.fail(noEvent)
		}
	}
	if w.peerFails {
		peer.fail(rdma.EventQPAccessErr)
	}
	if status != rdma.WCSuccess || w.flags&rdma.SendSignaled != 0 {
		q.report(w, pos, status, cause)
	}
}

// report adds the completion of a send queue request to the completion queue.
func (q *qp) report(w *sendWQE, pos uint64, status rdma.WCStatus, cause error) {
	c := cqe{qp: q, pos: pos, wc: rdma.WC{WRID: w.wrid, Status: status, Opcode: wcOpcode(w.opcode), QPNum: q.num, Cause: cause}}
	if status != rdma.WCSuccess {
		c.wc.VendorErr = vendorErr(status)
	} else if w.opcode == rdma.WRRDMARead {
		c.wc.ByteLen = uint32(w.bytes)
	}
	q.sendCQ.push(&c, false)
}

// vendorErr returns the vendor error code for a status. It is never zero, so that tests detect a
// missing code.
func vendorErr(s rdma.WCStatus) uint32 { return 0x50f70000 | uint32(s) }

func wcOpcode(o rdma.WROpcode) rdma.WCOpcode {
	switch o {
	case rdma.WRSend, rdma.WRSendWithImm:
		return rdma.WCSend
	case rdma.WRRDMARead:
		return rdma.WCRDMARead
	default:
		return rdma.WCRDMAWrite
	}
}

// deliver completes the receive of q that a request of queue pair from has used.
func (q *qp) deliver(w *sendWQE, from *qp) {
	failed := q.pushRecv(w)
	q.rq.taken()
	if failed && q != from {
		q.fail(rdma.EventQPReqErr)
	}
	if q.currentState() == rdma.QPSErr {
		q.engine().notify(q) // the engine can flush later receives now
	}
}

// pushRecv adds the completion of a receive. It reports whether the message was too long for the
// receive.
func (q *qp) pushRecv(w *sendWQE) (failed bool) {
	status := w.recvStatus
	switch q.currentState() {
	case rdma.QPSReset:
		q.rq.release(w.slot)
		return false
	case rdma.QPSErr:
		status = rdma.WCWRFlushErr
	default:
		failed = status != rdma.WCSuccess
	}
	c := cqe{qp: q, rq: q.rq, slot: w.slot, wc: rdma.WC{WRID: q.rq.slots[w.slot].wrid, Status: status, Opcode: rdma.WCRecv, QPNum: q.num}}
	if w.opcode == rdma.WRRDMAWriteWithImm {
		c.wc.Opcode = rdma.WCRecvRDMAWithImm
	}
	if status == rdma.WCSuccess {
		c.wc.ByteLen = uint32(w.bytes)
		if hasImm(w.opcode) {
			c.wc.Imm, c.wc.Flags = w.imm, rdma.WCWithImm
		}
	} else {
		c.wc.VendorErr, c.wc.Cause = vendorErr(status), w.cause
	}
	q.recvCQ.push(&c, w.flags&rdma.SendSolicited != 0)
	return failed
}

// flush completes the posted requests of both queues of q. No request may be in progress. flush
// reports whether there were any requests. The caller holds q.run.mu.
func (e *engine) flush(q *qp) bool {
	r, flushed := &q.run, false
	for tail := q.tail.Load(); r.retired < tail; r.retired++ {
		w := &q.sq[r.retired&q.mask]
		q.report(w, r.retired, rdma.WCWRFlushErr, w.cause)
		flushed = true
	}
	r.issued = r.retired
	for q.srq == nil {
		slot, ok := q.rq.takeToFlush()
		if !ok {
			break
		}
		q.recvCQ.push(&cqe{qp: q, rq: q.rq, slot: slot, wc: rdma.WC{
			WRID: q.rq.slots[slot].wrid, Status: rdma.WCWRFlushErr, Opcode: rdma.WCRecv, VendorErr: vendorErr(rdma.WCWRFlushErr), QPNum: q.num,
		}}, false)
		flushed = true
	}
	return flushed
}
