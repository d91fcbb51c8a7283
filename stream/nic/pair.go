package nic

import (
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
)

// pair is a queue pair connected to itself. Stream.hw guards its fields.
//
// Requests are built in a ring as deep as the send queue. They stay there until they complete, so
// that errors can describe them. Positions count requests since the start. Requests from Posted to
// built have not been posted yet.
type pair struct {
	*channel.Pair
	rail *rail

	wrs       []rdma.SendWR
	mask      uint64
	built     uint64
	remoteEnd uint64 // end address of the last built request
	bytes     int64  // size of the last built request
	unposted  int64  // bytes of requests from Posted to built
	chainMax  uint64

	// ops holds the batch of each chain at the position of its last request. A chain consists of
	// the requests of a batch that were posted together. ended is the position up to which chains
	// have ended.
	ops        []*op
	ended      uint64
	stopFailed bool // stopping the pair has failed; reported once
}

// newPair returns a pair for up to depth outstanding requests. depth must be a power of two.
func newPair(p *channel.Pair, r *rail, depth, sges int) *pair {
	q := &pair{Pair: p, rail: r, wrs: make([]rdma.SendWR, depth), mask: uint64(depth) - 1, ops: make([]*op, depth)}
	// A quarter of the queue, so that three chains are in flight while the next is built.
	q.chainMax = uint64(min(max(depth/4, 1), 256))
	all := make([]rdma.SGE, depth*sges)
	for i := range q.wrs {
		q.wrs[i].SGEs = all[i*sges : i*sges : (i+1)*sges]
	}
	return q
}

// transfer is a copy of n bytes, or part of one.
type transfer struct {
	opcode        rdma.WROpcode
	local, remote uint64
	lkey, rkey    uint32
	n             int64
}

// extend adds t to the last built request. It returns false if the request is already posted or t
// does not fit. The caller has checked that the remote addresses are adjacent.
func (q *pair) extend(t *transfer) bool {
	if q.built == q.Posted() || q.bytes+t.n > q.rail.requestBytes {
		return false
	}
	w := &q.wrs[(q.built-1)&q.mask]
	if w.Opcode != t.opcode || w.RKey != t.rkey {
		return false
	}
	last := &w.SGEs[len(w.SGEs)-1]
	switch {
	case last.LKey == t.lkey && last.Addr+uint64(last.Length) == t.local:
		last.Length += uint32(t.n)
	case len(w.SGEs) < q.rail.MaxSGE(t.opcode):
		w.SGEs = append(w.SGEs, rdma.SGE{Addr: t.local, Length: uint32(t.n), LKey: t.lkey})
	default:
		return false
	}
	q.remoteEnd += uint64(t.n)
	q.bytes += t.n
	q.unposted += t.n
	return true
}

// full reports whether the queue or the current chain has no space for a request.
func (q *pair) full() bool {
	waiting := q.built - q.Posted()
	return waiting == q.chainMax || waiting+q.Outstanding() > q.mask
}

// add builds a request. The queue must not be full.
func (q *pair) add(t *transfer) {
	w := &q.wrs[q.built&q.mask]
	w.Opcode, w.Flags = t.opcode, 0
	w.RKey, w.RemoteAddr = t.rkey, t.remote
	w.SGEs = w.SGEs[:1]
	w.SGEs[0] = rdma.SGE{Addr: t.local, Length: uint32(t.n), LKey: t.lkey}
	q.built++
	q.remoteEnd, q.bytes = t.remote+uint64(t.n), t.n
	q.unposted += t.n
}

// post posts the built requests of o with one doorbell, or two if they wrap around the ring. If the
// queue pair refuses requests, post drops them and returns the error. Accepted requests count as
// outstanding.
func (q *pair) post(o *op) (err error) {
	for q.Posted() < q.built {
		from := q.Posted() & q.mask
		n := min(q.built-q.Posted(), q.mask+1-from)
		run := q.wrs[from : from+n]
		run[n-1].Flags = rdma.SendSignaled
		var accepted int
		accepted, err = q.Post(run)
		if accepted > 0 {
			q.rail.counters.posted(accepted)
			q.ops[(q.Posted()-1)&q.mask] = o
			o.AddInFlight()
		}
		if err != nil {
			for ; q.built > q.Posted(); q.built-- {
				q.unposted -= q.wrs[(q.built-1)&q.mask].Bytes()
			}
			break
		}
	}
	q.rail.counters.bytes.Add(q.unposted)
	q.unposted = 0
	return err
}

// owner returns the batch of the request at seq. Its chain must not have ended.
func (q *pair) owner(seq uint64) *op {
	for q.ops[seq&q.mask] == nil {
		seq++
	}
	return q.ops[seq&q.mask]
}

// complete ends the chains before position end and calls each for their batches. Their requests
// have completed or were stopped.
func (q *pair) complete(end uint64, each func(*op)) {
	for ; q.ended < end; q.ended++ {
		if at := &q.ops[q.ended&q.mask]; *at != nil {
			if each != nil {
				each(*at)
			}
			(*at).RemoveInFlight()
			*at = nil
		}
	}
}
