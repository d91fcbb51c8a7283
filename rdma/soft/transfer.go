package soft

import (
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Transfer is the list of copies of one request, for a Mover.
type Transfer struct {
	// Batch has the copies. The mover owns it until it calls Done.
	Batch mem.Batch

	qp    *qp
	pos   uint64       // position of the request in the send queue
	read  bool         // the request is an RDMA read
	ops   []*opCounter // counters that count the transfer as an operation
	err   error
	moved atomic.Bool

	near, far []mem.Extent // local and remote extents of the request
}

// transfer returns an empty transfer for the next request of q.
func (e *engine) transfer(q *qp, w *sendWQE) (t *Transfer) {
	if n := len(e.freeTransfers); n > 0 {
		t, e.freeTransfers = e.freeTransfers[n-1], e.freeTransfers[:n-1]
	} else {
		t = new(Transfer)
	}
	t.qp, t.pos, t.read, t.err = q, q.run.issued, w.opcode == rdma.WRRDMARead, nil
	t.moved.Store(false)
	t.Batch.Dst, t.Batch.Src, t.ops = t.Batch.Dst[:0], t.Batch.Src[:0], t.ops[:0]
	return t
}

// Done ends the transfer. With an error, its request fails; any part of the bytes may have been
// copied.
func (t *Transfer) Done(err error) {
	e := t.qp.engine() // the engine owns t once moved is set
	t.err = err
	t.moved.Store(true)
	e.wake()
}

// beginOp counts the transfer in g until it ends. It returns false if g is stopped.
func (t *Transfer) beginOp(g *opCounter) bool {
	if !g.begin() {
		return false
	}
	t.ops = append(t.ops, g)
	return true
}

// end ends the transfer in all its counters and makes it available for reuse.
func (e *engine) end(t *Transfer) {
	for _, g := range t.ops {
		g.end()
	}
	e.freeTransfers = append(e.freeTransfers, t)
}

// add appends a copy.
func (t *Transfer) add(dst, src mem.Extent) {
	t.Batch.Dst, t.Batch.Src = append(t.Batch.Dst, dst), append(t.Batch.Src, src)
}

// zip appends copies from src to dst, which is at least as long in total.
func (t *Transfer) zip(dst, src []mem.Extent) {
	var to mem.Extent
	for _, from := range src {
		for from.Len > 0 {
			if to.Len == 0 {
				to, dst = dst[0], dst[1:]
			}
			n := min(from.Len, to.Len)
			t.add(to.Sub(0, n), from.Sub(0, n))
			from, to = from.Sub(n, from.Len-n), to.Sub(n, to.Len-n)
		}
	}
}

// overlaps reports whether an extent of these overlaps an extent of those.
func overlaps(these, those []mem.Extent) bool {
	for _, y := range those {
		for _, x := range these {
			if intersect(x, y) {
				return true
			}
		}
	}
	return false
}

// intersect reports whether two extents share bytes. It compares CPU addresses if both have one,
// otherwise device addresses.
func intersect(x, y mem.Extent) bool {
	if a, b := x.CPU(), y.CPU(); a != 0 || b != 0 {
		return a != 0 && b != 0 && a < b+mem.CPUAddr(y.Len) && b < a+mem.CPUAddr(x.Len)
	}
	a, b := x.Dev(), y.Dev()
	return a < b+mem.DevAddr(y.Len) && b < a+mem.DevAddr(x.Len)
}
