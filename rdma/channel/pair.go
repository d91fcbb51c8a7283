package channel

import (
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// Work request IDs are the index of the queue pair and the number of the request there.
const (
	seqBits = 48
	seqMask = 1<<seqBits - 1
)

// MaxPairs is the most queue pairs of a channel.
const MaxPairs = 1 << (64 - seqBits)

// Pair is a queue pair of a channel.
type Pair struct {
	QP       rdma.QP       // for its receives, and what it says of itself; requests go by Post
	Endpoint rdma.Endpoint // what the peer has to know to connect, as it was when the channel was opened

	channel      *Channel
	index        uint64
	posted, done uint64    // requests since it was made, and those that have completed as far as known
	stopped      time.Time // when it was moved to QPSErr, or zero
}

// Connect connects the queue pair, which is new or has been reset by Stop, to another's endpoint, or its own. Where it fails, close
// the channel.
func (p *Pair) Connect(to rdma.Endpoint) error {
	return rdma.Connect(p.channel.nic.Device(), p.QP, p.channel.connect, to)
}

// Posted returns how many requests were posted, and so the number that the next will have.
func (p *Pair) Posted() uint64 { return p.posted }

// Outstanding returns how many requests have not completed as far as known.
func (p *Pair) Outstanding() uint64 { return p.posted - p.done }

// Post posts wrs as rdma.QP.PostSend, and numbers them by setting WRID. Those that ask for no completion are known to be over by
// that of a later one.
func (p *Pair) Post(wrs []rdma.SendWR) (int, error) {
	for i := range wrs {
		wrs[i].WRID = p.index<<seqBits | (p.posted+uint64(i))&seqMask
	}
	n, err := p.QP.PostSend(wrs)
	p.posted += uint64(n)
	return n, err
}

// Completed notes a completion of Poll: it returns which queue pair it is of, by its index in Pairs, the number of the request,
// and how many requests are over by it, itself included. That is zero for one that is not outstanding any more.
func (c *Channel) Completed(wc *rdma.WC) (index int, seq, over uint64) {
	i := wc.WRID >> seqBits
	if i >= uint64(len(c.Pairs)) {
		return 0, 0, 0 // no request of this channel has such a number
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

// Stop ends what is outstanding of a queue pair that is connected, without waiting: it moves the queue pair to QPSErr, where its requests complete as flushed, and
// when it is called flush after that, to QPSReset. It returns how long to wait until then. Zero says that it was reset: nothing
// is outstanding, and nothing of it touches memory. It comes in these two steps since packets may be under way, which rdma_rxe
// does not bear during a reset (see rdma.QP.Modify).
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
