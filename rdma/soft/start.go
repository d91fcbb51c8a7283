package soft

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// outcome is what came of trying to start a request.
type outcome uint8

const (
	goes  outcome = iota // its bytes can move, or it has none
	fails                // sendWQE.status says how
	waits                // running.due says until when, if it is set
)

// start puts q's next request into the transfer that is being filled and reports whether it did: a request that will fail
// is put there without bytes, so that it fails in its turn. The caller holds q.run.mu.
func (e *engine) start(q *qp, w *sendWQE) bool {
	p := &e.plan
	p.dst, p.src, p.bytes = p.dst[:0], p.src[:0], 0
	p.holds, p.entered, p.uses = p.holds[:0], 0, p.uses[:0]
	if e.prov.o.Faults != nil && e.heldBack(q, w) {
		return false
	}
	l := q.link.Load()
	if l == nil || !e.hold(q.gate) {
		return false // it is being reset
	}
	o := goes
	if w.status == rdma.WCSuccess {
		o = e.prepare(q, w, l)
	}
	if o == waits {
		e.letGo()
		return false
	}
	if o == fails {
		p.dst, p.src, p.bytes, p.uses = p.dst[:0], p.src[:0], 0, p.uses[:0]
	} else if q.run.hit != nil {
		e.damage(w, q.run.hit)
	}
	q.run.tries, q.run.hit = 0, nil
	q.run.halted = w.status != rdma.WCSuccess
	if e.chooser != nil {
		e.chooser.watch(e, q, w)
	}
	e.admit(q)
	if o == goes && w.status == rdma.WCSuccess {
		e.know(q, w)
	}
	return true
}

// letGo leaves what was entered for a request that does not start.
func (e *engine) letGo() {
	for _, h := range e.plan.holds {
		if h.entered {
			h.gate.leave()
		}
	}
}

// hold enters g for the request that is being prepared, unless the transfer that is being filled is inside already, and
// reports whether it could.
func (e *engine) hold(g *gate) bool {
	if e.filling != nil && g.inside.Load() == e.filling {
		e.plan.holds = append(e.plan.holds, hold{g, false})
		return true
	}
	if !g.enter() {
		return false
	}
	e.plan.holds = append(e.plan.holds, hold{g, true})
	e.plan.entered++
	return true
}

// admit moves the plan into the transfer that is being filled, or into the next one where it does not fit.
func (e *engine) admit(q *qp) {
	p, t := &e.plan, e.transfer()
	if !e.fits(t) {
		for i := range p.holds {
			if h := &p.holds[i]; !h.entered {
				h.gate.word.Add(1) // the transfer that is launched is inside, so the gate cannot be shut yet
				h.entered = true
				p.entered++
			}
		}
		e.launch()
		t = e.transfer()
		e.near.begin(p.dst, p.src)
	}
	for i := range p.dst {
		t.add(p.dst[i], p.src[i])
	}
	t.bytes += p.bytes
	if p.entered > 0 {
		for _, h := range p.holds {
			if h.entered {
				t.held = append(t.held, h.gate)
				h.gate.inside.Store(t)
			}
		}
	}
	end := q.run.issued + 1
	if n := len(t.items); n > 0 && t.items[n-1].qp == q && !t.items[n-1].plain {
		t.items[n-1].end = end
	} else {
		t.items = append(t.items, item{qp: q, end: end})
	}
}

// fits reports whether the plan can go with t, and marks its copies if so. Where it answers false, t must be launched.
func (e *engine) fits(t *Transfer) bool {
	p, o := &e.plan, &e.prov.o
	switch {
	case len(p.dst) == 0:
		return true
	case t.pieces == 0:
		e.near.begin(p.dst, p.src)
		return true
	case t.pieces+len(p.dst) > o.TransferPieces || t.bytes+p.bytes > o.TransferBytes:
		return false
	}
	if w := wayOfAll(p.dst, p.src); w != e.near.way && e.near.way != bothWays {
		e.near.mix(t)
	}
	if len(p.dst) == 1 {
		return e.near.add(p.dst[0], p.src[0])
	}
	if e.near.conflicts(p.dst, p.src) {
		return false
	}
	e.near.mark(p.dst, p.src)
	return true
}

// prepare checks a request as the hardware of both sides does, and plans its bytes.
func (e *engine) prepare(q *qp, w *sendWQE, l *link) outcome {
	fail := func(s rdma.WCStatus, cause error) outcome {
		w.status, w.cause = s, cause
		return fails
	}
	if w.tooLong || w.bytes > l.port.o.MaxMessageBytes {
		return fail(rdma.WCLocLenErr, fmt.Errorf("a message of more than %d bytes: %w", l.port.o.MaxMessageBytes, errdefs.ErrInvalid))
	}
	if w.opcode == rdma.WRRDMARead && l.attr.MaxRDAtomic == 0 {
		return fail(rdma.WCLocQPOpErr, fmt.Errorf("MaxRDAtomic allows no reads: %w", errdefs.ErrInvalid))
	}
	if err := e.gather(q, w); err != nil {
		return fail(rdma.WCLocProtErr, err)
	}
	peer := q.reach(l)
	if peer == nil || !e.hold(peer.gate) {
		return e.retryAck(q, w, l)
	}
	peerLink := q.run.peerLink
	if w.opcode != rdma.WRSend && w.opcode != rdma.WRSendWithImm {
		if s, err := e.aim(w, peer, peerLink); err != nil {
			w.peer, w.peerFails = peer, true
			return fail(s, err)
		}
	}
	if receives(w.opcode) {
		if o := e.receive(q, w, l, peer, peerLink); o != goes {
			return o
		}
	}
	peer.run.received++
	return goes
}

// gather finds the local bytes of a request.
func (e *engine) gather(q *qp, w *sendWQE) error {
	p := &e.plan
	p.local = p.local[:0]
	if w.bytes == 0 {
		return nil
	}
	i := int(q.run.issued & q.mask)
	if w.flags&rdma.SendInline != 0 {
		p.local = append(p.local, mem.Extent{Region: q.inline, Off: int64(i * q.caps.MaxInlineBytes), Len: int64(w.bytes)})
		return nil
	}
	need := rdma.Access(0)
	if w.opcode == rdma.WRRDMARead {
		need = rdma.AccessLocalWrite
	}
	sges := w.only[:]
	if w.sges > 1 {
		sges = q.sges[i*q.caps.MaxSendSGE:][:w.sges]
	}
	var err error
	p.local, err = e.find(q, sges, need, p.local)
	return err
}

// find appends the extents that sges name to to.
func (e *engine) find(q *qp, sges []rdma.SGE, need rdma.Access, to []mem.Extent) ([]mem.Extent, error) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		x, m, err := q.dev().nic.local(q.pd, s, need)
		if err != nil {
			return to, err
		}
		if !e.hold(m.gate) {
			return to, errDeregistered
		}
		e.plan.uses = append(e.plan.uses, use{m, s.LKey, need})
		to = append(to, x)
	}
	return to, nil
}

var errDeregistered = fmt.Errorf("the memory region is being deregistered: %w", errdefs.ErrInvalid)

// aim finds the remote bytes of a read or a write and plans the copies.
func (e *engine) aim(w *sendWQE, peer *qp, l *link) (rdma.WCStatus, error) {
	need := rdma.AccessRemoteWrite
	if w.opcode == rdma.WRRDMARead {
		need = rdma.AccessRemoteRead
		if l.attr.MaxDestRDAtomic == 0 {
			return rdma.WCRemInvReqErr, fmt.Errorf("the peer's MaxDestRDAtomic allows no reads: %w", errdefs.ErrInvalid)
		}
	}
	if l.attr.Access&need == 0 {
		return rdma.WCRemInvReqErr, fmt.Errorf("queue pair %d allows %s and not %s: %w", peer.num, l.attr.Access, need, errdefs.ErrInvalid)
	}
	if w.bytes == 0 {
		return rdma.WCSuccess, nil // the key of no bytes is not looked at
	}
	x, m, err := peer.dev().nic.remote(peer.pd, w.rkey, w.remoteAddr, w.bytes, need)
	if err == nil && !e.hold(m.gate) {
		err = errDeregistered
	}
	if err != nil {
		return rdma.WCRemAccessErr, err
	}
	p := &e.plan
	p.uses = append(p.uses, use{m, w.rkey, need})
	p.bytes = int64(w.bytes)
	off := x.Off
	for _, near := range p.local {
		far := mem.Extent{Region: x.Region, Off: off, Len: near.Len}
		off += near.Len
		if w.opcode == rdma.WRRDMARead {
			p.dst, p.src = append(p.dst, near), append(p.src, far)
		} else {
			p.dst, p.src = append(p.dst, far), append(p.src, near)
		}
	}
	return rdma.WCSuccess, nil
}

// receive takes a receive of the peer and, for a send, plans the copies into it.
func (e *engine) receive(q *qp, w *sendWQE, l *link, peer *qp, pl *link) outcome {
	slot, ok := peer.rq.takeFor(peer)
	if !ok {
		return e.retryRNR(q, w, l, pl)
	}
	w.peer, w.received, w.slot, w.recvStatus = peer, true, slot, rdma.WCSuccess
	refuse := func(recv, send rdma.WCStatus, cause error) outcome {
		w.recvStatus, w.status, w.cause = recv, send, cause
		return fails
	}
	if w.opcode == rdma.WRRDMAWriteWithImm {
		return goes
	}
	p, s := &e.plan, &peer.rq.slots[slot]
	if int64(w.bytes) > s.bytes {
		return refuse(rdma.WCLocLenErr, rdma.WCRemInvReqErr, fmt.Errorf("a message of %d bytes for a receive of %d: %w", w.bytes, s.bytes, errdefs.ErrInvalid))
	}
	var err error
	if p.scatter, err = e.find(peer, s.sges, rdma.AccessLocalWrite, p.scatter[:0]); err != nil {
		return refuse(rdma.WCLocProtErr, rdma.WCRemOpErr, err)
	}
	p.bytes = int64(w.bytes)
	p.zip()
	return goes
}

// zip plans copies from the local extents into the scattered ones, which are no shorter in all.
func (p *plan) zip() {
	var to mem.Extent
	next := 0
	for _, from := range p.local {
		for from.Len > 0 {
			if to.Len == 0 {
				to = p.scatter[next]
				next++
			}
			n := min(from.Len, to.Len)
			p.dst, p.src = append(p.dst, to.Sub(0, n)), append(p.src, from.Sub(0, n))
			from, to = from.Sub(n, from.Len-n), to.Sub(n, to.Len-n)
		}
	}
}
