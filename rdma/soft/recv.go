package soft

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/rdma"
)

// recvQueue is a receive queue of one queue pair or a shared one. A request occupies a slot until
// its completion is polled.
type recvQueue struct {
	maxSGE int

	mu     sync.Mutex
	slots  []recvSlot
	sges   []rdma.SGE // maxSGE for each slot
	free   []uint32
	posted []uint32 // ring of slots with posted requests
	head   int
	count  int
	// inbound is the number of requests taken by messages that have not completed. It is used for a
	// queue pair's own queue only.
	inbound int
}

type recvSlot struct {
	wrid  uint64
	bytes int64
	sges  []rdma.SGE // a part of recvQueue.sges
}

func newRecvQueue(depth, maxSGE int) *recvQueue {
	r := &recvQueue{maxSGE: maxSGE, slots: make([]recvSlot, depth), sges: make([]rdma.SGE, depth*maxSGE), free: make([]uint32, depth), posted: make([]uint32, depth)}
	for i := range r.free {
		r.free[i] = uint32(depth - 1 - i)
	}
	return r
}

func (r *recvQueue) post(call string, wrs []rdma.RecvWR) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range wrs {
		w := &wrs[i]
		if len(w.SGEs) > r.maxSGE {
			return i, rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x, sges=%d", w.WRID, len(w.SGEs)), unix.EINVAL, fmt.Sprintf("the queue allows %d entries", r.maxSGE))
		}
		n := len(r.free)
		if n == 0 {
			return i, rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x", w.WRID), unix.ENOMEM, fmt.Sprintf("all %d entries are in use", len(r.slots)))
		}
		slot := r.free[n-1]
		r.free = r.free[:n-1]
		at := int(slot) * r.maxSGE
		sges := r.sges[at : at+len(w.SGEs) : at+r.maxSGE]
		copy(sges, w.SGEs)
		r.slots[slot] = recvSlot{wrid: w.WRID, bytes: w.Bytes(), sges: sges}
		tail := r.head + r.count
		if tail >= len(r.posted) {
			tail -= len(r.posted)
		}
		r.posted[tail] = slot
		r.count++
	}
	return len(wrs), nil
}

// takeFor takes the oldest request for a message to q. It returns the request's slot, which stays
// unchanged until release. It returns false if q has failed, so that requests are flushed in order.
func (r *recvQueue) takeFor(q *qp) (uint32, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !q.answers() || r.count == 0 {
		return 0, false
	}
	r.inbound++
	return r.take(), true
}

// taken ends the message for which takeFor took a request.
func (r *recvQueue) taken() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inbound--
}

// takeToFlush takes the oldest request of a failed queue pair. It returns false until all messages
// to the queue pair have completed.
func (r *recvQueue) takeToFlush() (uint32, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inbound > 0 || r.count == 0 {
		return 0, false
	}
	return r.take(), true
}

// canFlush reports whether takeToFlush would take a request.
func (r *recvQueue) canFlush() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inbound == 0 && r.count > 0
}

// take removes the oldest request and returns its slot. The caller holds mu. The queue must not be
// empty.
func (r *recvQueue) take() uint32 {
	slot := r.posted[r.head]
	if r.head++; r.head == len(r.posted) {
		r.head = 0
	}
	r.count--
	return slot
}

func (r *recvQueue) release(slot uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, slot)
}

// forget drops the posted requests.
func (r *recvQueue) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.count > 0 {
		r.free = append(r.free, r.take())
	}
}

// srq implements rdma.SRQ.
type srq struct {
	owner
	pd *pd
	rq *recvQueue
}

func (p *pd) CreateSRQ(caps rdma.SRQCaps) (rdma.SRQ, error) {
	const call = "soft_create_srq"
	info := &p.dev.nic.info
	if caps.MaxWR < 1 || caps.MaxWR > info.MaxSRQWR || caps.MaxSGE < 0 || caps.MaxSGE > info.MaxSRQSGE {
		return nil, fmt.Errorf("create shared receive queue: %w", rdma.NewError(call, fmt.Sprintf("wrs=%d, sges=%d", caps.MaxWR, caps.MaxSGE), unix.EINVAL,
			fmt.Sprintf("must be 1 to %d and 0 to %d", info.MaxSRQWR, info.MaxSRQSGE)))
	}
	if err := p.dev.begin(OpCreateSRQ, call, &p.dev.nic.srqs, info.MaxSRQ, &p.owner); err != nil {
		return nil, fmt.Errorf("create shared receive queue: %w", err)
	}
	s := &srq{pd: p, rq: newRecvQueue(caps.MaxWR, caps.MaxSGE)}
	s.open("shared receive queue")
	return s, nil
}

func (s *srq) Caps() rdma.SRQCaps {
	return rdma.SRQCaps{MaxWR: len(s.rq.slots), MaxSGE: s.rq.maxSGE}
}

func (s *srq) PostRecv(wrs []rdma.RecvWR) (int, error) {
	const call = "soft_post_srq_recv"
	err := s.pd.dev.fault(OpPostRecv, call)
	if err == nil {
		err = s.check(call)
	}
	n := 0
	if err == nil {
		n, err = s.rq.post(call, wrs)
	}
	if err != nil {
		return n, fmt.Errorf("post %d receives: %w", len(wrs), err)
	}
	return n, nil
}

func (s *srq) Close() error {
	ended, err := s.pd.dev.shutdown(&s.owner, "soft_destroy_srq")
	if err != nil {
		return fmt.Errorf("close shared receive queue: %w", err)
	}
	if ended {
		s.pd.dev.nic.srqs.giveBack()
		s.pd.removeChild()
	}
	return nil
}
