package soft

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// qp implements rdma.QP.
type qp struct {
	owner
	pd             *pd
	num            uint32
	sendCQ, recvCQ *cq
	srq            *srq // nil: the queue pair has its own rq
	rq             *recvQueue
	caps           rdma.QPCaps
	signalAll      bool
	// inline has space for the payloads of SendInline, MaxInlineBytes for each entry. Nil if that
	// is zero.
	inline *mem.Region
	ops    *opCounter // counts transfers of requests to or from the queue pair

	ctl sync.Mutex // serializes Modify and Close, which wait for transfers
	mu  sync.Mutex // held while posting to the send queue and while the state changes

	attr  rdma.QPAttr   // guarded by mu
	state atomic.Uint32 // attr.State, for engines
	link  atomic.Pointer[link]

	// The send queue. Entries in [freed, tail) are in use; requests in [retired, issued) have
	// started. Position p is entry sq[p&mask].
	sq       []sendWQE
	mask     uint64
	tail     atomic.Uint64
	freed    atomic.Uint64
	notified atomic.Bool // the engine was notified
	run      running
}

// link is the immutable state of a connection.
type link struct {
	port *port
	attr rdma.QPAttr // attributes set by the step to QPSRTR
}

// maxInlineBytes is the maximum payload of SendInline.
const maxInlineBytes = 1024

func (p *pd) CreateQP(o rdma.QPOptions) (rdma.QP, error) {
	const call = "soft_create_qp"
	q, err := p.newQP(call, o)
	if err != nil {
		return nil, fmt.Errorf("create queue pair: %w", err)
	}
	nic := p.dev.nic
	if err := p.dev.begin(OpCreateQP, call, &nic.qps, nic.info.MaxQP, &p.owner); err != nil {
		return nil, fmt.Errorf("create queue pair: %w", err)
	}
	if err := q.attach(call); err != nil {
		nic.qps.giveBack()
		p.removeChild()
		return nil, fmt.Errorf("create queue pair: %w", err)
	}
	nic.register(q)
	q.open("queue pair")
	return q, nil
}

// newQP checks o and returns a queue pair that is not yet attached to its queues.
func (p *pd) newQP(call string, o rdma.QPOptions) (*qp, error) {
	invalid := func(text string) (*qp, error) {
		return nil, rdma.NewError(call, fmt.Sprintf("caps=%+v", o.Caps), unix.EINVAL, text)
	}
	info, c := &p.dev.nic.info, o.Caps
	send, ok := o.SendCQ.(*cq)
	if !ok || send.dev != p.dev {
		return invalid("the send queue needs a completion queue of the device")
	}
	recv, ok := o.RecvCQ.(*cq)
	if !ok || recv.dev != p.dev {
		return invalid("the receive queue needs a completion queue of the device")
	}
	if c.MaxSendWR < 0 || c.MaxSendWR > info.MaxQPWR || c.MaxRecvWR < 0 || c.MaxRecvWR > info.MaxQPWR {
		return invalid(fmt.Sprintf("a queue holds 0 to %d requests", info.MaxQPWR))
	}
	if c.MaxSendSGE < 0 || c.MaxSendSGE > info.MaxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > info.MaxSGE {
		return invalid(fmt.Sprintf("a request has 0 to %d scatter-gather entries", info.MaxSGE))
	}
	if c.MaxInlineBytes < 0 || c.MaxInlineBytes > maxInlineBytes {
		return invalid(fmt.Sprintf("a request carries 0 to %d bytes inline", maxInlineBytes))
	}
	q := &qp{pd: p, sendCQ: send, recvCQ: recv, caps: c, signalAll: o.SignalAll, ops: newGate()}
	if o.SRQ != nil {
		if q.srq, ok = o.SRQ.(*srq); !ok || q.srq.pd != p {
			return invalid("the shared receive queue belongs to another protection domain")
		}
		if c.MaxRecvWR != 0 {
			return invalid("a queue pair with a shared receive queue cannot have its own receive queue")
		}
		q.rq = q.srq.rq
	} else {
		q.rq = newRecvQueue(c.MaxRecvWR, c.MaxRecvSGE)
	}
	size := 1
	for size < c.MaxSendWR {
		size *= 2
	}
	q.sq, q.mask = make([]sendWQE, size), uint64(size-1)
	sges := make([]rdma.SGE, size*c.MaxSendSGE)
	for i := range q.sq {
		q.sq[i].sges, sges = sges[:0:c.MaxSendSGE], sges[c.MaxSendSGE:]
	}
	return q, nil
}

// attach makes q a child of its queues and allocates memory for inline payloads. On error it undoes
// both.
func (q *qp) attach(call string) error {
	if err := q.sendCQ.attach(call, q); err != nil {
		return err
	}
	undo := func() { q.sendCQ.detach(q) }
	if q.recvCQ != q.sendCQ {
		if err := q.recvCQ.attach(call, q); err != nil {
			undo()
			return err
		}
		undo = func() { q.sendCQ.detach(q); q.recvCQ.detach(q) }
	}
	if q.srq != nil {
		if err := q.srq.adopt(call); err != nil {
			undo()
			return err
		}
	}
	if err := q.allocInline(); err != nil {
		undo()
		if q.srq != nil {
			q.srq.removeChild()
		}
		return err
	}
	return nil
}

func (q *qp) detach() {
	q.sendCQ.detach(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.detach(q)
	}
	if q.srq != nil {
		q.srq.removeChild()
	}
}

func (q *qp) allocInline() error {
	bytes := int64(len(q.sq) * q.caps.MaxInlineBytes)
	if bytes == 0 {
		return nil
	}
	b, err := hostmem.Alloc(bytes)
	if err != nil {
		return err
	}
	if q.inline, err = hostmem.Region(b); err == nil {
		err = q.prov().o.Mover.Reaches(q.inline)
	}
	if err != nil {
		q.inline = nil
		return fmt.Errorf("allocate memory for inline payloads: %w", errors.Join(err, hostmem.Free(b)))
	}
	return nil
}

func (q *qp) dev() *Device    { return q.pd.dev }
func (q *qp) prov() *Provider { return q.pd.dev.nic.prov }
func (q *qp) engine() *engine { return q.prov().engine }

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Query() (rdma.QPInfo, error) {
	const call = "soft_query_qp"
	err := q.dev().fault(OpQueryQP, call)
	if err == nil {
		err = q.check(call)
	}
	if err != nil {
		return rdma.QPInfo{}, fmt.Errorf("query queue pair %d: %w", q.num, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return rdma.QPInfo{Attr: q.attr, Caps: q.caps}, nil
}

// currentState returns the state. The caller need not hold q.mu.
func (q *qp) currentState() rdma.QPState { return rdma.QPState(q.state.Load()) }

func (q *qp) PostRecv(wrs []rdma.RecvWR) (int, error) {
	const call = "soft_post_recv"
	n, err := q.postRecv(call, wrs)
	if err != nil {
		return n, fmt.Errorf("post %d receives on queue pair %d: %w", len(wrs), q.num, err)
	}
	return n, nil
}

func (q *qp) postRecv(call string, wrs []rdma.RecvWR) (int, error) {
	if err := q.dev().fault(OpPostRecv, call); err != nil {
		return 0, err
	}
	q.mu.Lock() // a concurrent change of state applies to all of wrs or to none
	defer q.mu.Unlock()
	if err := q.check(call); err != nil {
		return 0, err
	}
	if q.srq != nil || q.attr.State == rdma.QPSReset {
		return 0, rdma.NewPostError(call, "state="+q.attr.State.String(), unix.EINVAL, "no receive can be posted here")
	}
	n, err := q.rq.post(call, wrs)
	if n > 0 && q.attr.State == rdma.QPSErr {
		q.engine().notify(q)
	}
	return n, err
}

// Close closes the queue pair.
func (q *qp) Close() error {
	const call = "soft_destroy_qp"
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.closed.Load() {
		return nil
	}
	err := q.dev().fault(OpClose, call)
	if err == nil {
		err = q.quiesce(call)
	}
	if err != nil {
		return fmt.Errorf("close queue pair %d: %w", q.num, err)
	}
	_, err = q.close(call)
	n := q.dev().nic
	n.delist(q)
	q.detach()
	n.qps.giveBack()
	q.pd.removeChild()
	if q.inline != nil {
		err = errors.Join(err, hostmem.Free(q.inline.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("close queue pair %d: %w", q.num, err)
	}
	return nil
}
