package soft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// channel implements rdma.CompChannel.
type channel struct {
	owner
	dev    *Device
	events *mailbox[*cq] // each queue at most once
}

// CreateCompChannel creates a completion channel.
func (d *Device) CreateCompChannel() (rdma.CompChannel, error) {
	const call = "soft_create_comp_channel"
	err := d.fault(OpCreateChannel, call)
	if err == nil {
		err = d.adopt(call)
	}
	if err != nil {
		return nil, fmt.Errorf("create completion channel: %w", err)
	}
	c := &channel{dev: d, events: newMailbox[*cq]("completion channel")}
	c.open("completion channel")
	return c, nil
}

func (c *channel) Wait(ctx context.Context) (rdma.CQ, error) {
	const call = "soft_get_cq_event"
	err := c.dev.fault(OpWaitChannel, call)
	if err == nil {
		var q *cq
		if q, err = c.events.wait(ctx, call); err == nil {
			return q, nil
		}
	}
	return nil, fmt.Errorf("wait for completions: %w", err)
}

func (c *channel) Close() error {
	ended, err := c.dev.shutdown(&c.owner, "soft_destroy_comp_channel")
	if err != nil {
		return fmt.Errorf("close completion channel: %w", err)
	}
	if ended {
		c.events.close()
		c.dev.removeChild()
	}
	return nil
}

// cq implements rdma.CQ.
type cq struct {
	owner
	dev     *Device
	channel *channel

	mu       sync.Mutex
	ring     []cqe
	head     int
	count    int // number of completions
	armed    arming
	lost     error
	attached []*qp
}

// cqe is a completion and the queue entry that polling it frees.
type cqe struct {
	wc   rdma.WC
	qp   *qp
	rq   *recvQueue // receive queue, or nil for a send
	slot uint32     // slot in rq
	pos  uint64     // position in the send queue
}

type arming uint8

const (
	disarmed arming = iota
	armedSolicited
	armedAny
)

// CreateCQ creates a completion queue.
func (d *Device) CreateCQ(o rdma.CQOptions) (rdma.CQ, error) {
	const call = "soft_create_cq"
	args := fmt.Sprintf("entries=%d, vector=%d", o.Entries, o.Vector)
	if o.Entries < 1 || o.Entries > d.nic.info.MaxCQE || o.Vector != 0 {
		return nil, fmt.Errorf("create completion queue: %w", rdma.NewError(call, args, unix.EINVAL, fmt.Sprintf("must be 1 to %d entries and vector 0", d.nic.info.MaxCQE)))
	}
	q := &cq{dev: d, ring: make([]cqe, o.Entries)}
	if o.Channel != nil {
		c, ok := o.Channel.(*channel)
		if !ok || c.dev != d {
			return nil, fmt.Errorf("create completion queue: %w", rdma.NewError(call, args, unix.EINVAL, "the channel belongs to another device"))
		}
		q.channel = c
	}
	if err := d.begin(OpCreateCQ, call, &d.nic.cqs, d.nic.info.MaxCQ, &d.owner); err != nil {
		return nil, fmt.Errorf("create completion queue: %w", err)
	}
	if q.channel != nil {
		if err := q.channel.adopt(call); err != nil {
			d.nic.cqs.giveBack()
			d.removeChild()
			return nil, fmt.Errorf("create completion queue: %w", err)
		}
	}
	q.open("completion queue")
	return q, nil
}

func (q *cq) Entries() int { return len(q.ring) }

func (q *cq) Poll(wcs []rdma.WC) (int, error) {
	const call = "soft_poll_cq"
	if q.dev.nic.prov.o.Faults != nil {
		if err := q.pollFault(call); err != nil {
			return 0, err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(call); err != nil {
		return 0, fmt.Errorf("poll completion queue: %w", err)
	}
	n := min(len(wcs), q.count)
	for i := range n {
		c := &q.ring[q.head]
		wcs[i] = c.wc
		c.free()
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	if q.count -= n; n > 0 || len(wcs) == 0 || q.lost == nil {
		return n, nil
	}
	return 0, fmt.Errorf("poll completion queue: %w: %w", errdefs.ErrBroken, q.lost)
}

// free frees the queue entry of a polled or dropped completion.
func (c *cqe) free() {
	if c.rq != nil {
		c.rq.release(c.slot)
		return
	}
	c.qp.freed.Store(c.pos + 1)
}

func (q *cq) pollFault(call string) error {
	err := q.dev.fault(OpPoll, call)
	if err == nil {
		return nil
	}
	q.lose(err)
	return fmt.Errorf("poll completion queue: %w: %w", errdefs.ErrBroken, err)
}

// push adds a completion and sends the requested event. If the queue is full, it drops the
// completion and marks the queue as lost.
func (q *cq) push(c *cqe, solicited bool) {
	q.mu.Lock()
	if q.lost != nil || q.count == len(q.ring) {
		q.mu.Unlock()
		c.free()
		q.lose(errOverflow)
		return
	}
	q.ring[(q.head+q.count)%len(q.ring)] = *c
	q.count++
	wake := q.armed == armedAny || q.armed == armedSolicited && (solicited || c.wc.Status != rdma.WCSuccess)
	if wake {
		q.armed = disarmed
	}
	q.mu.Unlock()
	if wake {
		q.channel.events.putOnce(q)
	}
}

var errOverflow = errors.New("the queue was full at a completion")

// lose marks the queue as lost with the first cause. Its completions can still be polled.
func (q *cq) lose(cause error) {
	q.mu.Lock()
	if q.lost != nil {
		q.mu.Unlock()
		return
	}
	q.lost = cause
	attached := slices.Clone(q.attached)
	wake := q.armed != disarmed
	q.armed = disarmed
	q.mu.Unlock()
	q.dev.events.put(rdma.AsyncEvent{Type: rdma.EventCQErr, CQ: q})
	for _, p := range attached {
		p.fail(rdma.EventQPFatal)
	}
	if wake {
		q.channel.events.putOnce(q)
	}
}

func (q *cq) RequestNotify(solicitedOnly bool) error {
	const call = "soft_req_notify_cq"
	err := q.dev.fault(OpNotify, call)
	if err == nil {
		err = q.check(call)
	}
	if err == nil && q.channel == nil {
		err = rdma.NewError(call, "", unix.EINVAL, "the completion queue has no channel")
	}
	if err != nil {
		return fmt.Errorf("request completion event: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// A later request for solicited completions does not replace a request for any completion.
	if !solicitedOnly {
		q.armed = armedAny
	} else if q.armed == disarmed {
		q.armed = armedSolicited
	}
	return nil
}

func (q *cq) attach(call string, p *qp) error {
	if err := q.adopt(call); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attached = append(q.attached, p)
	return nil
}

func (q *cq) detach(p *qp) {
	q.mu.Lock()
	q.attached = slices.DeleteFunc(q.attached, func(o *qp) bool { return o == p })
	q.mu.Unlock()
	q.removeChild()
}

// purge drops the completions of p.
func (q *cq) purge(p *qp) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := 0
	for i := range q.count {
		c := q.ring[(q.head+i)%len(q.ring)]
		if c.qp == p {
			c.free()
			continue
		}
		q.ring[(q.head+kept)%len(q.ring)] = c
		kept++
	}
	q.count = kept
}

func (q *cq) Close() error {
	ended, err := q.dev.shutdown(&q.owner, "soft_destroy_cq")
	if err != nil {
		return fmt.Errorf("close completion queue: %w", err)
	}
	if !ended {
		return nil
	}
	if q.channel != nil {
		q.channel.events.remove(q)
		q.channel.removeChild()
	}
	q.dev.nic.cqs.giveBack()
	q.dev.removeChild()
	return nil
}
