package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
)

// A conn by RDMA has a queue pair in each process. A separate connection is used to connect the
// queue pairs and carries no data afterwards. It ends with either process or queue pair, and its
// end closes the queue pair in the other process. Therefore a conn by RDMA is fenced like any
// other.

// openLocal opens the domain for local memory. It returns nil without NICs.
func openLocal(n *rail.NICs) (*rail.Domain, error) {
	if n == nil {
		return nil, nil
	}
	return n.Use()
}

func closeDomain(d *rail.Domain) error {
	if d == nil {
		return nil
	}
	return d.Close()
}

// RegisterLocal registers local memory with the engine's NICs, so that batches can use RDMA. Memory
// that is not registered uses other paths. Without NICs, RegisterLocal does nothing. The memory
// stays pinned until the engine is closed. It returns ErrExists for registered memory,
// ErrNotSupported for memory of another process, and errors of the NICs unless Options.NICsOptional
// is set.
func (e *Engine) RegisterLocal(r *mem.Region) error {
	if e.local == nil {
		return nil
	}
	if r.Origin() != nil {
		return fmt.Errorf("register local memory: the %s belongs to another process: %w", r, errdefs.ErrNotSupported)
	}
	if _, err := e.local.Register(r, 0); err != nil {
		if err = e.handleRefusal(err); err != nil {
			return fmt.Errorf("register local memory: %w", err)
		}
	}
	return nil
}

// handleRefusal handles an error of registering memory. It returns nil if the memory may use other
// paths instead.
func (e *Engine) handleRefusal(err error) error {
	switch {
	// an error of the caller
	case errors.Is(err, errdefs.ErrExists) || errors.Is(err, errdefs.ErrClosed):
		return err
	case !e.o.NICsOptional:
		return fmt.Errorf("required NICs refused it: raise their limits, or permit other paths: %w", err)
	}
	e.recordRefusal(err)
	return nil
}

// recordRefusal counts a refusal and stores its cause.
func (e *Engine) recordRefusal(why error) {
	e.counters.refusals.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusal = why
}

// nicPair is a pair of a local and a remote NIC, by index.
type nicPair struct{ local, remote int }

// backoff is the state of a pair of NICs after a failure. The pair is not used until the time
// until. The delay doubles with each failure until a request succeeds.
type backoff struct {
	until time.Time
	delay time.Duration
	err   error
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// backOff starts or extends the backoff of pair v.
func (p *peer) backOff(v nicPair, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.backoffs[v]
	if r == nil {
		r = new(backoff)
		p.backoffs[v] = r
	}
	// otherwise another queue pair has already reported this failure
	if now := time.Now(); !now.Before(r.until) {
		r.delay = min(max(2*r.delay, minBackoff), maxBackoff)
		r.until, r.err = now.Add(r.delay), why
	}
}

// resetBackoff ends the backoff of pair v after a success.
func (p *peer) resetBackoff(v nicPair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.backoffs, v)
}

// beginRDMA begins to transfer a part with a queue pair.
func (g *group) beginRDMA(ctx context.Context, p *part, forced Path) error {
	if err := p.buf.rdma(g.e); err != nil {
		return err
	}
	c, err := g.to.p.queue(ctx, g.to, forced == PathNone)
	if err != nil {
		return err
	}
	lease, err := g.e.local.Lease(c.nics.local, p.extents())
	if err != nil {
		return &localError{err}
	}
	if err := g.send(p, PathRDMA, c, lease); err != nil {
		lease.Release()
		return err
	}
	return nil
}

// queue returns the least loaded queue pair to a segment. If skipBackoff is true, it does not open
// one on NICs in backoff.
func (p *peer) queue(ctx context.Context, to *Remote, skipBackoff bool) (*conn, error) {
	here, there := len(p.e.o.NICs.Names()), to.nics()
	most := max(p.e.o.Lanes, here, there)
	return p.pick(ctx, to, most, func(ctx context.Context) (*conn, error) {
		v, err := p.choose(to, most, here, there, skipBackoff)
		if err != nil {
			return nil, err
		}
		c, err := p.openQueue(ctx, to, v)
		if err != nil {
			if ctx.Err() == nil { // otherwise the batch has ended
				p.backOff(v, err)
			}
			return nil, fmt.Errorf("connect queue pair to engine at %s: %w", p.addr, err)
		}
		return c, nil
	})
}

// choose returns the NICs for the next queue pair. most is the maximum number of queue pairs.
func (p *peer) choose(to *Remote, most, here, there int, skipBackoff bool) (nicPair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := make(map[nicPair]int)
	for _, c := range p.conns {
		if c.to == to {
			have[c.nics]++
		}
	}
	err := fmt.Errorf("engine at %s has %d NICs: %w", p.addr, there, errdefs.ErrNotSupported)
	for k := range most {
		if here == 0 || there == 0 {
			break
		}
		v := nicPair{k % here, k % there}
		if have[v] > 0 {
			have[v]--
			continue
		}
		if r := p.backoffs[v]; r != nil && skipBackoff && time.Now().Before(r.until) {
			err = fmt.Errorf("it failed less than %v ago: %w", r.delay, r.err)
			continue
		}
		return v, nil
	}
	return nicPair{}, err
}

// openQueue opens a queue pair and connects it to a new queue pair of the peer.
func (p *peer) openQueue(ctx context.Context, to *Remote, v nicPair) (*conn, error) {
	if err := p.isLost(); err != nil {
		return nil, err // fail fast: opening a queue pair takes longer
	}
	q, err := p.e.local.Open(v.local)
	if err != nil {
		return nil, err
	}
	c, err := p.connect(ctx, to, v, q)
	if err != nil {
		p.e.local.Retire(q)
	}
	return c, err
}

func (p *peer) connect(ctx context.Context, to *Remote, v nicPair, q *rail.Queue) (_ *conn, err error) {
	number := p.e.connID.Add(1)
	raw, r, err := p.dial(ctx, hello{purpose: forQueue, conn: number})
	if err != nil {
		return nil, err
	}
	c := &controlConn{raw, r}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreClosed(c.Close()))
		}
	}()
	f, err := newFrame(callConnect, connectRequest{Segment: to.number, NIC: v.remote, From: q.Endpoint()})
	if err != nil {
		return nil, err
	}
	out, err := c.ask(ctx, &f)
	if err != nil {
		return nil, err
	}
	if err := out.status.err(out.payload); err != nil {
		// A NIC may recover, for example when its link is up again, so the error must not be
		// conclusive.
		if out.status == statusFailed {
			err = errors.New(err.Error())
		}
		return nil, err
	}
	var answer connectReply
	if err := out.decode(&answer); err != nil {
		return nil, err
	}
	if err := q.Connect(answer.To); err != nil {
		return nil, err
	}
	queue := &queueConn{newConn(p, number, c.pacedConn), q, r}
	queue.to, queue.nics, queue.quiesce = to, v, func() { closeQueue(q) }
	if err := p.addConn(queue.conn); err != nil {
		return nil, err
	}
	queue.run(queue.post, queue.waitCompletions, queue.listen)
	return queue.conn, nil
}

// closeQueue retries until the queue is closed and no longer accesses memory. It has no context;
// callers that need the memory wait for it with their own contexts.
func closeQueue(q *rail.Queue) {
	for wait := time.Millisecond; q.Close() != nil; wait = min(2*wait, time.Second) {
		time.Sleep(wait)
	}
}

// queueConn is a conn with a queue pair.
type queueConn struct {
	*conn
	q *rail.Queue
	r *bufferedConn
}

func (c *queueConn) post() error {
	for {
		f := c.next()
		if f == nil {
			if err := c.sleep(); err != nil {
				return err
			}
			continue
		}
		p := f.part
		job := rail.Job{Write: p.op == Write, Lease: f.lease, Local: p.extents(), Key: p.buf.Keys[c.nics.remote]}
		_ = p.shape.each(func(off, n int64) error { // each returns errors of the callback only
			job.Remote = rail.AppendSpan(job.Remote, off-p.buf.Offset, n)
			return nil
		})
		if err := c.q.Send(c.ctx, &job); err != nil {
			return c.broke(err)
		}
	}
}

func (c *queueConn) waitCompletions() error {
	for {
		n, err := c.q.Wait(c.ctx)
		for range n {
			c.p.resetBackoff(c.nics)
			c.complete(nil)
		}
		c.paced.markProgress() // the conn makes progress
		if err == nil {
			continue
		}
		if f := c.oldest(); f != nil && c.ctx.Err() == nil && errors.Is(err, errdefs.ErrInvalid) {
			f.cause = fmt.Errorf("the NICs refused it: %w", err)
			// Another part caused the error, so the other parts get only a text.
			return errors.New("a NIC refused one of its requests")
		}
		return c.broke(err)
	}
}

// listen waits until the peer closes the connection. It returns an error if the conn makes no
// progress for too long.
func (c *queueConn) listen() error {
	_, err := c.r.ReadByte()
	switch {
	case err == nil:
		return fmt.Errorf("the target sent unexpected data: %w", errdefs.ErrMismatch)
	case timedOut(err):
		return c.broke(fmt.Errorf("no completions: %w", err))
	}
	return err
}

// broke starts the backoff of the conn's NICs and returns the error for the conn. It keeps only the
// text of err, so that errors.Is does not match err for the conn's parts.
func (c *queueConn) broke(err error) error {
	if c.ctx.Err() != nil {
		return errConnEnded
	}
	err = fmt.Errorf("queue pair: %s", err.Error())
	c.p.backOff(c.nics, err)
	return err
}
