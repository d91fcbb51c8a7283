package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
)

const (
	depth = 128 // requests of a queue pair
	max24 = 1<<24 - 1
)

// queue is the queue pair of a session, with receives for the requests of its client. One goroutine
// calls run. The other methods are safe for concurrent use.
type queue struct {
	g        *Gateway
	ch       *channel.Channel
	receives *mem.Buffers
	buffers  []mem.Buffer // by the number of their receive

	mu      sync.Mutex
	changed sync.Cond // with mu: a request has completed, or err is set
	pending map[uint64]func(error)
	err     error
}

// openQueue opens a queue pair with that many receives.
func (g *Gateway) openQueue(receives int, bytes int64, onFailure func(error)) (_ *queue, err error) {
	q := &queue{g: g, pending: make(map[uint64]func(error))}
	q.changed.L = &q.mu
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	connect := g.o.Connect
	connect.PSN, connect.Access = rand.Uint32N(max24+1), access
	if q.receives, err = g.buffers(int64(receives), bytes); err != nil {
		return nil, err
	}
	q.ch, err = channel.Open(channel.Options{NIC: g.o.NIC, Connect: connect, Depth: depth, Receives: receives, OnFailure: onFailure})
	if err != nil {
		return nil, err
	}
	for range receives {
		b, err := q.receives.TryAcquire(bytes)
		if err != nil {
			return nil, err
		}
		q.buffers = append(q.buffers, b)
	}
	return q, nil
}

// connect connects the queue pair to that of the client, and posts the receives.
func (q *queue) connect(to rdma.Endpoint) error {
	if err := q.ch.Pairs[0].Connect(to); err != nil {
		return err
	}
	for i := range q.buffers {
		if err := q.receive(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// receive posts a receive again.
func (q *queue) receive(i uint64) error {
	b := q.buffers[i]
	_, err := q.ch.Pairs[0].QP.PostRecv([]rdma.RecvWR{{WRID: i, SGEs: []rdma.SGE{sge(b, 0, int64(b.Len))}}})
	if err != nil {
		return fmt.Errorf("post a receive: %w", err)
	}
	return nil
}

// post posts requests, and waits for space in the queue before. It calls done when all of them have
// completed, or when nothing accesses their memory any more, also after an error.
func (q *queue) post(done func(error), wrs ...rdma.SendWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	pair := q.ch.Pairs[0]
	for q.err == nil && pair.Outstanding()+uint64(len(wrs)) > uint64(q.ch.Depth) {
		q.changed.Wait()
	}
	err, n := q.err, 0
	if err == nil {
		wrs[len(wrs)-1].Flags |= rdma.SendSignaled
		n, err = pair.Post(wrs)
	}
	if n > 0 {
		q.pending[pair.Posted()-1] = done
	} else {
		done(err)
	}
	return err
}

// wait waits until all requests have completed.
func (q *queue) wait() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && len(q.pending) > 0 {
		q.changed.Wait()
	}
	return q.err
}

// fail ends all waits with an error. Requests stay pending until close.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	q.changed.Broadcast()
}

// run processes completions of requests until ctx ends or one of them fails.
func (q *queue) run(ctx context.Context) error {
	for {
		if err := q.ch.CQ.RequestNotify(false); err != nil {
			return err
		}
		if err := q.poll(); err != nil {
			return err
		}
		if err := q.ch.Wait(ctx); err != nil {
			return err
		}
	}
}

func (q *queue) poll() error {
	var wcs [16]rdma.WC
	for {
		q.mu.Lock()
		n, err := q.ch.CQ.Poll(wcs[:])
		for i := range wcs[:n] {
			_, seq, over := q.ch.Completed(&wcs[i])
			if over == 0 {
				continue
			}
			if done := q.pending[seq]; done != nil {
				delete(q.pending, seq)
				done(wcs[i].Err())
			}
			if err == nil {
				err = wcs[i].Err()
			}
		}
		q.changed.Broadcast()
		q.mu.Unlock()
		if err != nil || n < len(wcs) {
			return err
		}
	}
}

// close closes the queue pair, and then ends all requests. It returns when neither side accesses
// memory through it. The session's goroutines have returned.
func (q *queue) close() {
	if q.ch != nil {
		_, _ = q.ch.Pairs[0].Stop(time.Hour) // to the error state; closing it follows in any case
		for q.ch.Close() != nil {
			time.Sleep(time.Millisecond)
		}
	}
	for _, done := range q.pending {
		done(fmt.Errorf("the queue pair is closed: %w", errdefs.ErrClosed))
	}
	if q.receives == nil {
		return
	}
	for _, b := range q.buffers {
		_ = q.receives.Release(b) // host memory is zeroed without an error
	}
	_ = q.g.free(context.Background(), q.receives) // Close of the gateway reports it again
}
