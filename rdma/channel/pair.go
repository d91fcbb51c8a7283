package channel

import (
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// A work request ID has the index of the queue pair and the number of the request.
const (
	seqBits = 48
	seqMask = 1<<seqBits - 1
)

// MaxPairs is the maximum number of queue pairs of a channel.
const MaxPairs = 1 << (64 - seqBits)

// Pair is a queue pair of a channel.
type Pair struct {
	QP       rdma.QP       // for its receives and queries; requests use Post
	Endpoint rdma.Endpoint // data for the peer, as of Open

	channel      *Channel
	index        uint64
	posted, done uint64    // number of posted requests, and of those known to have completed
	stopped      time.Time // time of the move to QPSErr, or zero
}

// Connect connects the queue pair, which is new or reset by Stop, to an endpoint, possibly its own.
// If it fails, the caller closes the channel.
func (p *Pair) Connect(to rdma.Endpoint) error {
	return rdma.Connect(p.channel.nic.Device(), p.QP, p.channel.connect, to)
}

// Posted returns the number of posted requests, which is the number of the next one.
func (p *Pair) Posted() uint64 { return p.posted }

// Outstanding returns the number of requests that are not known to have completed.
func (p *Pair) Outstanding() uint64 { return p.posted - p.done }

// Post posts wrs like rdma.QP.PostSend. It sets WRID to the number of the request. A request
// without a completion has completed when a later one has.
func (p *Pair) Post(wrs []rdma.SendWR) (int, error) {
	for i := range wrs {
		wrs[i].WRID = p.index<<seqBits | (p.posted+uint64(i))&seqMask
	}
	n, err := p.QP.PostSend(wrs)
	p.posted += uint64(n)
	return n, err
}

// Completed processes a completion from Poll. It returns the index of the queue pair in Pairs, the
// number of the request, and the number of requests that completed with it, including itself; that
// is zero if the request is no longer outstanding.
func (c *Channel) Completed(wc *rdma.WC) (index int, seq, over uint64) {
	i := wc.WRID >> seqBits
	if i >= uint64(len(c.Pairs)) {
		return 0, 0, 0 // no request of this channel has this number
	}
	p := c.Pairs[i]
	ahead := (wc.WRID - p.done) & seqMask
	if ahead >= p.Outstanding() {
		return 0, 0, 0
	}
	seq, over = p.done+ahead, ahead+1
	p.done += over
	return int(i), seq, over
}

// Stop cancels the outstanding requests of a connected queue pair without waiting. The first call
// moves it to QPSErr, where its requests complete as flushed. A call after the time flush moves it
// to QPSReset. Stop returns the time until then, or zero when the queue pair is reset: nothing is
// outstanding then, and it no longer touches memory. Two steps are necessary because packets may be
// on their way, and rdma_rxe fails if one arrives during a reset (see rdma.QP.Modify).
func (p *Pair) Stop(flush time.Duration) (wait time.Duration, err error) {
	if p.stopped.IsZero() {
		if err := p.QP.Modify(rdma.QPAttr{State: rdma.QPSErr}); err != nil {
			return 0, err
		}
		p.stopped = time.Now()
	}
	if left := flush - time.Since(p.stopped); left > 0 {
		return left, nil
	}
	if err := p.QP.Modify(rdma.QPAttr{State: rdma.QPSReset}); err != nil {
		return 0, err
	}
	p.done, p.stopped = p.posted, time.Time{}
	return 0, nil
}
