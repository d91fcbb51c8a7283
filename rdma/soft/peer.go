package soft

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// retryAck delays a request to a peer that does not respond. When no retries are left, it fails the
// request.
func (q *qp) retryAck(w *sendWQE, l *link) outcome {
	// number of attempts after which the delay stops growing if there is no limit
	const endless = 14
	if l.attr.Timeout != 0 && q.run.tries > int(l.attr.RetryCount) {
		w.status = rdma.WCRetryExcErr
		w.cause = fmt.Errorf("queue pair %d at %s did not answer %d times", l.attr.DestQPNum, l.attr.Address.GID, q.run.tries)
		return fails
	}
	code := l.attr.Timeout
	if code == 0 {
		code = endless
	}
	return q.run.retry(rdma.AckTimeout(code))
}

// retryRNR delays a request to a peer without a posted receive. When no retries are left, it fails
// the request.
func (q *qp) retryRNR(w *sendWQE, l, peer *link) outcome {
	const endless = 7
	if l.attr.RNRRetry != endless && q.run.tries > int(l.attr.RNRRetry) {
		w.status = rdma.WCRNRRetryExcErr
		w.cause = fmt.Errorf("queue pair %d had no posted receive %d times: %w", l.attr.DestQPNum, q.run.tries, errdefs.ErrBusy)
		return fails
	}
	return q.run.retry(rdma.RNRTimer(peer.attr.MinRNRTimer))
}

func (r *running) retry(d time.Duration) outcome {
	r.tries++
	r.due = time.Now().Add(d)
	return waits
}

// reach returns the peer and its link, or nil if the peer does not respond.
func (q *qp) reach(l *link) (*qp, *link) {
	pt := q.prov().portOf(l.attr.Address.GID)
	if pt == nil || !pt.active.Load() || !l.port.active.Load() {
		return nil, nil
	}
	peer := pt.nic.find(l.attr.DestQPNum)
	if peer == nil || !peer.answers() {
		return nil, nil
	}
	pl := peer.link.Load()
	if pl == nil || pl.port != pt || pl.attr.DestQPNum != q.num || !l.port.hasGID(pl.attr.Address.GID) {
		return nil, nil
	}
	// The peer accepts only the packet with the next sequence number.
	if (pl.attr.RQPSN+peer.run.received.Load())&psnMask != (l.attr.SQPSN+uint32(q.run.issued))&psnMask {
		return nil, nil
	}
	return peer, pl
}

// answers reports whether the queue pair accepts requests from its peer.
func (q *qp) answers() bool {
	s := q.currentState()
	return s == rdma.QPSRTR || s == rdma.QPSRTS
}
