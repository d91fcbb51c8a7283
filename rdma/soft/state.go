package soft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/rdma"
)

// Limits of the 5-bit timers and the 3-bit counters.
const (
	maxTimer = 31
	maxRetry = 7
	psnMask  = 1<<24 - 1
)

// Modify moves the queue pair to another state.
func (q *qp) Modify(a rdma.QPAttr) error {
	const call = "soft_modify_qp"
	q.ctl.Lock()
	defer q.ctl.Unlock()
	err := q.dev().fault(OpModifyQP, call)
	if err == nil {
		err = q.modify(call, a)
	}
	if err != nil {
		return fmt.Errorf("modify queue pair %d to %s: %w", q.num, a.State, err)
	}
	return nil
}

func (q *qp) modify(call string, a rdma.QPAttr) error {
	if err := q.check(call); err != nil {
		return err
	}
	if a.State == rdma.QPSReset {
		if err := q.quiesce(call); err != nil {
			return err
		}
		q.ops.reopen()
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	old := q.attr
	invalid := func(text string) error {
		return rdma.NewError(call, "from="+old.State.String(), unix.EINVAL, text)
	}
	switch {
	case a.State == rdma.QPSErr && old.State != rdma.QPSReset:
		q.setState(rdma.QPSErr)
		q.engine().notify(q)
		return nil
	case a.State == rdma.QPSInit && old.State == rdma.QPSReset:
		if err := q.checkInit(call, &a); err != nil {
			return err
		}
		q.attr.Port, q.attr.PKeyIndex, q.attr.Access = a.Port, a.PKeyIndex, a.Access
	case a.State == rdma.QPSRTR && old.State == rdma.QPSInit:
		if why := q.checkRTR(&a); why != "" {
			return invalid(why)
		}
		q.attr = a
		q.attr.Port, q.attr.PKeyIndex, q.attr.Access = old.Port, old.PKeyIndex, old.Access
		q.attr.SQPSN, q.attr.MaxRDAtomic, q.attr.Timeout, q.attr.RetryCount, q.attr.RNRRetry = 0, 0, 0, 0, 0
	case a.State == rdma.QPSRTS && old.State == rdma.QPSRTR:
		if a.SQPSN > psnMask || a.Timeout > maxTimer || a.RetryCount > maxRetry || a.RNRRetry > maxRetry || int(a.MaxRDAtomic) > q.dev().nic.info.MaxQPInitRDAtomic {
			return invalid("an attribute is out of range")
		}
		q.attr.SQPSN, q.attr.MaxRDAtomic, q.attr.Timeout, q.attr.RetryCount, q.attr.RNRRetry = a.SQPSN, a.MaxRDAtomic, a.Timeout, a.RetryCount, a.RNRRetry
	default:
		return invalid("no such transition")
	}
	if a.State != rdma.QPSInit {
		q.link.Store(&link{port: q.dev().nic.ports[q.attr.Port-1], attr: q.attr})
	}
	q.setState(a.State)
	return nil
}

// setState sets the state. The caller holds mu.
func (q *qp) setState(s rdma.QPState) {
	q.attr.State = s
	q.state.Store(uint32(s))
}

func (q *qp) checkInit(call string, a *rdma.QPAttr) error {
	if _, err := q.dev().nic.port(call, a.Port); err != nil {
		return err
	}
	if a.PKeyIndex != 0 || a.Access&^(rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteRead) != 0 {
		return rdma.NewError(call, fmt.Sprintf("pkey_index=%d, access=%s", a.PKeyIndex, a.Access), unix.EINVAL, "the port has one partition key, and a queue pair allows reads and writes")
	}
	return nil
}

// checkRTR returns a text with the first error in a, or an empty string.
func (q *qp) checkRTR(a *rdma.QPAttr) string {
	p := q.dev().nic.ports[q.attr.Port-1]
	switch i := a.Address.GIDIndex; {
	case a.PathMTU.Bytes() == 0 || a.PathMTU > p.o.MTU:
		return fmt.Sprintf("the path MTU is %s and the port's %s", a.PathMTU, p.o.MTU)
	case i < 0 || i >= len(p.o.GIDs) || p.o.GIDs[i] == (rdma.GID{}):
		return fmt.Sprintf("the port has no GID %d", i)
	case a.Address.GID == (rdma.GID{}):
		return "Ethernet requires the peer's GID"
	case a.DestQPNum > qpNumMask || a.RQPSN > psnMask || a.MinRNRTimer > maxTimer || int(a.MaxDestRDAtomic) > q.dev().nic.info.MaxQPRDAtomic:
		return "an attribute is out of range"
	}
	return ""
}

// quiesce moves the queue pair to QPSReset and stops its operations. Afterwards it no longer
// accesses memory and has no posted requests. If transfers do not finish in time, quiesce returns
// ErrBusy and the queue pair is in QPSErr. The caller holds ctl.
func (q *qp) quiesce(call string) error {
	q.mu.Lock()
	q.setState(rdma.QPSReset)
	q.mu.Unlock()
	if err := q.ops.stop(call, q.prov()); err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.setState(rdma.QPSErr)
		q.engine().notify(q)
		return err
	}
	q.run.mu.Lock() // the engine may be flushing
	defer q.run.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.link.Store(nil)
	q.sendCQ.purge(q)
	q.recvCQ.purge(q)
	if q.srq == nil {
		q.rq.forget()
	}
	q.attr = rdma.QPAttr{}
	q.tail.Store(0)
	q.freed.Store(0)
	q.run.reset()
	return nil
}

// fail moves the queue pair to QPSErr and sends event e unless it is noEvent. The engine flushes
// posted receives, and sends that have not started.
func (q *qp) fail(e rdma.EventType) {
	q.mu.Lock()
	failed := q.attr.State != rdma.QPSReset && q.attr.State != rdma.QPSErr
	if failed {
		q.setState(rdma.QPSErr)
	}
	q.mu.Unlock()
	if !failed {
		return
	}
	q.engine().notify(q)
	if e != noEvent {
		q.dev().events.put(rdma.AsyncEvent{Type: e, QPNum: q.num})
	}
	if q.srq != nil {
		q.dev().events.put(rdma.AsyncEvent{Type: rdma.EventQPLastWQEReached, QPNum: q.num})
	}
}

// noEvent is for failures that a completion reports.
const noEvent = rdma.EventType(255)
