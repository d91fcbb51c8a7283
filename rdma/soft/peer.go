package soft

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// retryAck lets a request wait for a peer that does not answer, until its retries are used up.
func (e *engine) retryAck(q *qp, w *sendWQE, l *link) outcome {
	const endless = 14 // how often to look when there is no end to it
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

// retryRNR lets a request wait for a peer that has no receive posted.
func (e *engine) retryRNR(q *qp, w *sendWQE, l, peer *link) outcome {
	const endless = 7
	if l.attr.RNRRetry != endless && q.run.tries > int(l.attr.RNRRetry) {
		w.status = rdma.WCRNRRetryExcErr
		w.cause = fmt.Errorf("queue pair %d had no receive posted %d times: %w", l.attr.DestQPNum, q.run.tries, errdefs.ErrBusy)
		return fails
	}
	return q.run.retry(rdma.RNRTimer(peer.attr.MinRNRTimer))
}

func (r *running) retry(d time.Duration) outcome {
	r.tries++
	r.due = time.Now().Add(d)
	return waits
}

// reach returns the peer, or nil where none answers.
func (q *qp) reach(l *link) *qp {
	r := &q.run
	if r.peer != nil && r.ownLink == l && r.peer.link.Load() == r.peerLink && r.peer.answers() && l.port.active.Load() && r.peerLink.port.active.Load() {
		return r.peer
	}
	r.peer = nil
	pt := q.prov().portOf(l.attr.Address.GID)
	if pt == nil || !pt.active.Load() || !l.port.active.Load() {
		return nil
	}
	peer := pt.nic.find(l.attr.DestQPNum)
	if peer == nil || !peer.answers() {
		return nil
	}
	pl := peer.link.Load()
	if pl == nil || pl.port != pt || pl.attr.DestQPNum != q.num || !l.port.hasGID(pl.attr.Address.GID) {
		return nil
	}
	// The peer takes the next packet and no other.
	if (pl.attr.RQPSN+peer.run.received)&psnMask != (l.attr.SQPSN+uint32(r.issued))&psnMask {
		return nil
	}
	r.peer, r.peerLink, r.ownLink, r.inside = peer, pl, l, 0
	return peer
}

// answers reports whether the queue pair takes requests of its peer.
func (q *qp) answers() bool {
	s := q.at()
	return s == rdma.QPSRTR || s == rdma.QPSRTS
}
