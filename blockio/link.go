package blockio

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
)

// spins is the number of polls without a completion before a link waits for an event.
const spins = 200

// link is the queue pair of a connection. The server receives requests with addresses, accesses
// the memory, and completes a request by the last write to its flag, whose immediate is the number
// of the request. One goroutine calls run. The other methods are safe for concurrent use.
type link struct {
	c      *conn
	s      *slots
	ch     *channel.Channel
	ctx    context.Context
	cancel context.CancelFunc // ends run

	mu     sync.Mutex // guards the queue pair and its queues
	calls  map[uint32]*call
	packer Packer
	body   []byte
	wcs    [16]rdma.WC
}

// attach connects a queue pair to the server. It returns nil if the server or the NIC refuses, with
// the reason. Both goroutines of the connection have not started.
func (c *conn) attach(s *slots) (_ *link, refusal, err error) {
	connect := s.o.Connect
	connect.PSN = rand.Uint32N(max24 + 1) // packets of an earlier queue pair are not accepted
	ch, err := channel.Open(channel.Options{NIC: s.o.NIC, Connect: connect, Depth: 2 * s.count, Receives: s.count, OnFailure: c.fail})
	if err != nil {
		return nil, err, nil
	}
	pair := ch.Pairs[0]
	c.id++
	q := Request{Op: OpAttach, ID: c.id, RemainingMillis: lostAfter * c.limits.KeepAliveMillis, Endpoint: pair.Endpoint}
	r, err := c.exchange(&q)
	if err == nil {
		if refusal = r.Status.Err(); refusal != nil {
			refusal = fmt.Errorf("the server refuses RDMA: %w", refusal)
		} else {
			refusal = pair.Connect(r.Endpoint)
		}
	}
	if err != nil || refusal != nil {
		closeChannel(ch)
		return nil, refusal, err
	}
	l := &link{c: c, s: s, ch: ch, calls: make(map[uint32]*call)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil, nil
}

// exchange sends a request and reads its result, before the goroutines of the connection start.
func (c *conn) exchange(q *Request) (*Result, error) {
	var p Packer
	body, err := p.Request(nil, q, &c.limits)
	if err != nil {
		return nil, err
	}
	if err := c.w.Append(body); err != nil {
		return nil, err
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	body, data, err := c.r.Next()
	if err != nil {
		return nil, err
	}
	r := new(Result)
	if err := r.Decode(body, &c.limits); err != nil {
		return nil, err
	}
	if data > 0 {
		return nil, invalid("result of %v with %d bytes of data", q.Op, data)
	}
	return r, r.Answers(q)
}

// closeChannel moves queue pairs to the error state and closes them. It returns when they access no
// memory any more: memory in use by a NIC is never reused.
func closeChannel(ch *channel.Channel) {
	for _, p := range ch.Pairs {
		_, _ = p.Stop(time.Hour) // to the error state; closing it follows in any case
	}
	for ch.Close() != nil {
		time.Sleep(time.Millisecond)
	}
}

// send sends a call. It reports false if the call must go over the socket.
func (l *link) send(k *call) (bool, error) {
	if !l.s.prepare(k) {
		l.s.missed.Add(1)
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q, pair := &k.request, l.ch.Pairs[0]
	l.calls[uint32(q.ID)] = k
	body, err := l.packer.Request(l.body[:0], q, &l.c.limits)
	if err != nil {
		return false, err // end releases the slots
	}
	l.body = body
	e, err := l.s.sends.Extent(k.remote.send)
	if err != nil {
		return false, err
	}
	copy(e.Bytes(), body)
	l.c.mu.Lock()
	k.written, k.rdma = true, true
	l.c.mu.Unlock()
	if _, err := pair.QP.PostRecv([]rdma.RecvWR{{}}); err != nil {
		return false, fmt.Errorf("post a receive: %w", err)
	}
	wr := sendRequest(k.remote.send)
	if _, err := pair.Post([]rdma.SendWR{wr}); err != nil {
		return false, fmt.Errorf("post %v: %w", q.Op, err)
	}
	l.s.sent.Add(1)
	return true, nil
}

// sendRequest returns the work request that sends a buffer, by its device address.
func sendRequest(b mem.Buffer) rdma.SendWR {
	return rdma.SendWR{Opcode: rdma.WRSend, Flags: rdma.SendSignaled, SGEs: []rdma.SGE{{Addr: uint64(b.Dev), Length: b.Len, LKey: b.Key}}}
}

// run processes completions until the connection ends. It polls for a bounded time after each, and
// then waits for an event.
func (l *link) run() error {
	for idle := 0; ; {
		n, err := l.poll()
		if err == nil && l.ctx.Err() != nil {
			return nil
		}
		switch idle++; {
		case err != nil:
			return err
		case n > 0:
			idle = 0
		case idle < spins:
			runtime.Gosched()
		case idle == spins: // a completion before this call has no event, so the next poll follows
			if err := l.ch.Receives.RequestNotify(true); err != nil {
				return err
			}
		default:
			if err := l.ch.WaitReceive(l.ctx); err != nil && l.ctx.Err() == nil {
				return err
			}
			idle = 0
		}
	}
}

// poll processes the completions that there are, and returns the number of calls that ended.
func (l *link) poll() (ended int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cq := range []rdma.CQ{l.ch.CQ, l.ch.Receives} {
		n, err := cq.Poll(l.wcs[:])
		for i := range l.wcs[:n] {
			wc := &l.wcs[i]
			if err := wc.Err(); err != nil {
				return ended, err
			}
			if cq == l.ch.CQ {
				l.ch.Completed(wc)
				continue
			}
			if err := l.complete(wc); err != nil {
				return ended, err
			}
			ended++
		}
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// complete ends the call whose flag was written. The caller holds mu.
func (l *link) complete(wc *rdma.WC) error {
	k := l.calls[wc.Imm]
	if k == nil || wc.Flags&rdma.WCWithImm == 0 {
		return invalid("result of request %d, which is not in progress", wc.Imm)
	}
	e, err := l.s.flags.Extent(k.remote.flag)
	if err != nil {
		return err
	}
	flag, q := e.Bytes(), &k.request
	word, n := hostmem.LoadUint64(flag), le.Uint32(flag[8:])
	if word != CompletionWord(q.ID, q.Phase) || int64(n) > int64(len(flag)-FlagHeadBytes) {
		return invalid("flag of request %d with %#x and %d bytes", q.ID, word, n)
	}
	l.body = append(l.body[:0], flag[FlagHeadBytes:FlagHeadBytes+n]...) // the server may write again
	if err := k.result.Decode(l.body, &l.c.limits); err != nil {
		return err
	}
	if err := k.result.Answers(q); err != nil {
		return err
	}
	if err := l.s.flush(k); err != nil {
		return err
	}
	delete(l.calls, wc.Imm)
	r := k.remote
	k.remote = nil
	if err := l.s.release(r); err != nil {
		return err
	}
	return l.c.answered(k)
}

// settle waits for the end of a call whose cancellation is confirmed, for at most fenceTimeout. The
// server has written its flag before.
func (l *link) settle(k *call) {
	for end := time.Now().Add(fenceTimeout); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
		if _, err := l.poll(); err != nil {
			l.c.fail(err)
			return
		}
		select {
		case <-k.done:
			return
		default:
		}
	}
}

// close closes the queue pair, and then returns the slots and the memory of all calls. The
// goroutines of the connection have returned.
func (l *link) close() {
	l.cancel()
	closeChannel(l.ch)
	for _, k := range l.calls {
		if k.remote != nil {
			_ = l.s.release(k.remote) // a buffer that cannot be zeroed stays lent
			k.remote = nil
		}
	}
}
