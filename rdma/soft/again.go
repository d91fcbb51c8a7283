package soft

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Most requests differ from the one before in nothing but their addresses. What was found out for that one need not be found
// again as long as the transfer that is being filled is the same: it is inside the gates of its queue pairs and memory regions,
// so that none of these can end, and its keys mean what they meant.

// use is a memory region that a request names by one of its keys, and what for.
type use struct {
	mr   *mr
	key  uint32
	need rdma.Access
}

// known are memory regions by key, as requests of the transfer that is being filled were allowed to use them.
type known [knownSlots]knownKey

const knownSlots = 64

// knownKey is a key with what its memory region says of itself.
type knownKey struct {
	inside uint64 // engine.fillings of the transfer
	pd     *pd
	region *mem.Region
	addr   uint64 // of the first byte that the key reaches
	len    uint64
	off    int64 // of addr in region
	key    uint32
	need   rdma.Access
}

// at returns the place for key.
func (k *known) at(key uint32) *knownKey { return &k[(key>>8^key>>2)%knownSlots] }

// within returns n bytes at addr; false where they are not inside.
func (k *knownKey) within(addr uint64, n uint32) (mem.Extent, bool) {
	off := addr - k.addr
	if off > k.len || uint64(n) > k.len-off {
		return mem.Extent{}, false
	}
	return mem.Extent{Region: k.region, Off: k.off + int64(off), Len: int64(n)}, true
}

// know notes what the request that was admitted last has used.
func (e *engine) know(q *qp, w *sendWQE) {
	r := &q.run
	if r.peer == nil || receives(w.opcode) {
		return
	}
	if r.inside != e.fillings {
		r.inside, r.went = e.fillings, 0
	}
	r.went |= 1 << w.opcode
	for _, u := range e.plan.uses {
		x := u.mr.info.Extent
		*e.known.at(u.key) = knownKey{
			inside: e.fillings, pd: u.mr.pd, region: x.Region, addr: u.mr.info.Addr, len: uint64(x.Len), off: x.Off, key: u.key, need: u.need,
		}
	}
}

// reaches reports whether requests of q may start as those before did. The caller holds q.run.mu.
func (e *engine) reaches(q *qp) bool {
	if e.chooser != nil || e.prov.o.Faults != nil {
		return false
	}
	l := q.link.Load()
	return l != nil && q.run.peer != nil && q.reach(l) != nil
}

// startAsBefore is start for a request that needs nothing but what requests before it in the transfer have needed, and fits in
// there. Otherwise it returns false, and start must follow: which launches the transfer if the request does not fit, and then
// forgets what is marked of it in vain. The caller holds q.run.mu, and q reaches its peer.
func (e *engine) startAsBefore(q *qp, w *sendWQE) bool {
	r := &q.run
	if r.inside != e.fillings || r.went&(1<<w.opcode) == 0 || w.flags&rdma.SendInline != 0 || w.tooLong || w.bytes == 0 || w.bytes > r.ownLink.port.o.MaxMessageBytes {
		return false
	}
	read := w.opcode == rdma.WRRDMARead
	near, far := rdma.Access(0), rdma.AccessRemoteWrite
	if read {
		near, far = rdma.AccessLocalWrite, rdma.AccessRemoteRead
	}
	k := e.known.at(w.rkey)
	if k.inside != e.fillings || k.key != w.rkey || k.pd != r.peer.pd || k.need != far {
		return false
	}
	away, ok := k.within(w.remoteAddr, w.bytes)
	if !ok {
		return false
	}
	t, o := e.filling, &e.prov.o
	if t.pieces+int(w.sges) > o.TransferPieces || t.bytes+int64(w.bytes) > o.TransferBytes {
		return false
	}
	p := &e.plan
	p.local = p.local[:0]
	sges := w.only[:]
	if w.sges != 1 {
		sges = q.sges[int(r.issued&q.mask)*q.caps.MaxSendSGE:][:w.sges]
	}
	for i := range sges {
		s := &sges[i]
		k := e.known.at(s.LKey)
		if k.inside != e.fillings || k.key != s.LKey || k.pd != q.pd || k.need != near || s.Length == 0 {
			return false
		}
		x, ok := k.within(s.Addr, s.Length)
		if !ok || len(sges) > 1 && (s.Addr|w.remoteAddr|uint64(s.Length))%blockBytes != 0 {
			return false // of several copies two might seem to overlap
		}
		p.local = append(p.local, x)
	}
	// They go a way that copies of the transfer go already: every key is used as it was there.
	for i, off := 0, int64(0); i < len(p.local); i++ {
		dst, src := away.Sub(off, p.local[i].Len), p.local[i]
		if read {
			dst, src = src, dst
		}
		if !e.near.add(dst, src) {
			return false
		}
		off += p.local[i].Len
	}
	for i, off := 0, int64(0); i < len(p.local); i++ {
		dst, src := away.Sub(off, p.local[i].Len), p.local[i]
		if read {
			dst, src = src, dst
		}
		t.add(dst, src)
		off += p.local[i].Len
	}
	t.bytes += int64(w.bytes)
	r.peer.run.received++
	t.extend(q, r.issued+1, w.flags&rdma.SendSignaled != 0)
	return true
}

// extend has one more plain request, the one before position end.
func (t *Transfer) extend(q *qp, end uint64, signaled bool) {
	if n := len(t.items); n > 0 {
		if it := &t.items[n-1]; it.qp == q && it.plain && !it.signaled {
			it.end, it.signaled = end, signaled
			return
		}
	}
	t.items = append(t.items, item{qp: q, end: end, plain: true, signaled: signaled})
}
