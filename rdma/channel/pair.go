package channel

import (
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// A work request ID consists of the index of the queue pair and the request's sequence number.
const (
	seqBits = 48
	seqMask = 1<<seqBits - 1
)

// MaxPairs is the maximum number of queue pairs of a channel.
const MaxPairs = 1 << (64 - seqBits)

// Pair is a queue pair of a channel.
type Pair struct {
	QP rdma.QP // receives and queries use it directly; requests use Post
	// Endpoint is the address that the peer connects to. It is the state at the time of Open.
	Endpoint rdma.Endpoint

	channel *Channel
	index   uint64
	// number of posted requests, and of requests known to have completed
	posted, done uint64
	stopped      time.Time // time of the move to QPSErr, or zero
}

// Connect connects a new or reset queue pair to an endpoint, possibly its own. On error the caller
// closes the channel.
func (p *Pair) Connect(to rdma.Endpoint) error {
	return rdma.Connect(p.channel.nic.Device(), p.QP, p.channel.connect, to)
}

// Posted returns the number of posted requests. The next request has this number.
func (p *Pair) Posted() uint64 { return p.posted }

// Outstanding returns the number of requests that are not known to have completed.
func (p *Pair) Outstanding() uint64 { return p.posted - p.done }

// Post posts wrs like rdma.QP.PostSend and sets WRID to the number of each request. A request that
// does not ask for a completion counts as completed when a later one completes.
func (p *Pair) Post(wrs []rdma.SendWR) (int, error) {
	for i := range wrs {
		wrs[i].WRID = p.index<<seqBits | (p.posted+uint64(i))&seqMask
	}
	n, err := p.QP.PostSend(wrs)
	p.posted += uint64(n)
	return n, err
}

// Completed processes a completion from Poll. It returns the index of the queue pair in Pairs, the
// number of the request, and the number of requests that this completion covers, including the
// request itself. The last result is zero if an earlier completion already covered the request.
func (c *Channel) Completed(wc *rdma.WC) (index int, seq, over uint64) {
	i := wc.WRID >> seqBits
	if i >= uint64(len(c.Pairs)) {
		return 0, 0, 0 // not a request of this channel
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
// moves the queue pair to QPSErr, where its requests complete as flushed. A call after the duration
// flush moves it to QPSReset. Stop returns the time until that call is due, or zero if the queue
// pair is reset: then no request is outstanding and memory is no longer accessed. The two steps are
// necessary because rdma_rxe fails if a packet arrives during a reset (see rdma.QP.Modify).
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
