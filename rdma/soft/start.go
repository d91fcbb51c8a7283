package soft

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// outcome is the result of an attempt to start a request.
type outcome uint8

const (
	goes  outcome = iota // the bytes can move, or the request has none
	fails                // the request fails with sendWQE.status
	waits                // try again at running.due, or after a notification if that is zero
)

// start returns the transfer of q's next request, or nil if the request cannot start now. The
// transfer of a request that will fail has no bytes, so that requests fail in order. The caller
// holds q.run.mu.
func (e *engine) start(q *qp, w *sendWQE) *Transfer {
	if e.prov.o.Faults != nil && e.heldBack(q, w) {
		return nil
	}
	l := q.link.Load()
	if l == nil {
		return nil // the queue pair is being reset
	}
	t := e.transfer(q, w)
	if !t.beginOp(q.ops) {
		e.end(t)
		return nil // the queue pair is being reset
	}
	o := goes
	if w.status == rdma.WCSuccess {
		o = prepare(t, w, l)
	}
	switch {
	case o == waits:
		e.end(t)
		return nil
	case o == fails:
		t.Batch.Dst, t.Batch.Src = t.Batch.Dst[:0], t.Batch.Src[:0]
	case q.run.fault != nil:
		e.damage(t, w, q.run.fault)
	}
	q.run.tries, q.run.fault = 0, nil
	q.run.halted = w.status != rdma.WCSuccess
	return t
}

// prepare checks a request as both sides of hardware do, and plans its copies.
func prepare(t *Transfer, w *sendWQE, l *link) outcome {
	q := t.qp
	fail := func(s rdma.WCStatus, cause error) outcome {
		w.status, w.cause = s, cause
		return fails
	}
	if w.bytes > int64(l.port.o.MaxMessageBytes) {
		return fail(rdma.WCLocLenErr, fmt.Errorf("a message of more than %d bytes: %w", l.port.o.MaxMessageBytes, errdefs.ErrInvalid))
	}
	if t.read && l.attr.MaxRDAtomic == 0 {
		return fail(rdma.WCLocQPOpErr, fmt.Errorf("MaxRDAtomic allows no reads: %w", errdefs.ErrInvalid))
	}
	if err := gather(t, w); err != nil {
		return fail(rdma.WCLocProtErr, err)
	}
	peer, peerLink := q.reach(l)
	if peer == nil || !t.beginOp(peer.ops) {
		return q.retryAck(w, l)
	}
	if w.opcode != rdma.WRSend && w.opcode != rdma.WRSendWithImm {
		if s, err := aim(t, w, peer, peerLink); err != nil {
			w.peer, w.peerFails = peer, true
			return fail(s, err)
		}
	}
	if receives(w.opcode) {
		if o := receive(t, w, peer, l, peerLink); o != goes {
			return o
		}
	}
	peer.run.received.Add(1)
	return goes
}

// gather looks up the local extents of a request.
func gather(t *Transfer, w *sendWQE) (err error) {
	q := t.qp
	t.near = t.near[:0]
	switch {
	case w.bytes == 0:
	case w.flags&rdma.SendInline != 0:
		t.near = append(t.near, mem.Extent{Region: q.inline, Off: int64(t.pos&q.mask) * int64(q.caps.MaxInlineBytes), Len: w.bytes})
	case t.read:
		t.near, err = find(t, q, w.sges, rdma.AccessLocalWrite, t.near)
	default:
		t.near, err = find(t, q, w.sges, 0, t.near)
	}
	return err
}

// find looks up the extents of sges for q and appends them to all.
func find(t *Transfer, q *qp, sges []rdma.SGE, need rdma.Access, all []mem.Extent) ([]mem.Extent, error) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		x, m, err := q.dev().nic.local(q.pd, s, need)
		if err != nil {
			return all, err
		}
		if !t.beginOp(m.ops) {
			return all, errDeregistered
		}
		all = append(all, x)
	}
	return all, nil
}

var errDeregistered = fmt.Errorf("the memory region is being deregistered: %w", errdefs.ErrInvalid)

// aim looks up the remote extent of a read or write and plans the copies.
func aim(t *Transfer, w *sendWQE, peer *qp, l *link) (rdma.WCStatus, error) {
	need := rdma.AccessRemoteWrite
	if t.read {
		need = rdma.AccessRemoteRead
		if l.attr.MaxDestRDAtomic == 0 {
			return rdma.WCRemInvReqErr, fmt.Errorf("the peer's MaxDestRDAtomic allows no reads: %w", errdefs.ErrInvalid)
		}
	}
	if l.attr.Access&need == 0 {
		return rdma.WCRemInvReqErr, fmt.Errorf("queue pair %d allows %s and not %s: %w", peer.num, l.attr.Access, need, errdefs.ErrInvalid)
	}
	if w.bytes == 0 {
		return rdma.WCSuccess, nil // a request without bytes ignores its key
	}
	x, m, err := peer.dev().nic.remote(peer.pd, w.rkey, w.remoteAddr, uint32(w.bytes), need)
	if err == nil && !t.beginOp(m.ops) {
		err = errDeregistered
	}
	if err != nil {
		return rdma.WCRemAccessErr, err
	}
	t.far = append(t.far[:0], x)
	if t.read {
		t.zip(t.near, t.far)
	} else {
		t.zip(t.far, t.near)
	}
	return rdma.WCSuccess, nil
}

// receive takes a posted receive of the peer. For a send it also plans the copies.
func receive(t *Transfer, w *sendWQE, peer *qp, l, pl *link) outcome {
	slot, ok := peer.rq.takeFor(peer)
	if !ok {
		return t.qp.retryRNR(w, l, pl)
	}
	w.peer, w.received, w.slot, w.recvStatus = peer, true, slot, rdma.WCSuccess
	refuse := func(recv, send rdma.WCStatus, cause error) outcome {
		w.recvStatus, w.status, w.cause = recv, send, cause
		return fails
	}
	if w.opcode == rdma.WRRDMAWriteWithImm {
		return goes
	}
	s := &peer.rq.slots[slot]
	if w.bytes > s.bytes {
		return refuse(rdma.WCLocLenErr, rdma.WCRemInvReqErr, fmt.Errorf("a message of %d bytes for a receive of %d: %w", w.bytes, s.bytes, errdefs.ErrInvalid))
	}
	var err error
	if t.far, err = find(t, peer, s.sges, rdma.AccessLocalWrite, t.far[:0]); err != nil {
		return refuse(rdma.WCLocProtErr, rdma.WCRemOpErr, err)
	}
	t.zip(t.far, t.near)
	return goes
}
