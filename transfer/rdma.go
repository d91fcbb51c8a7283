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

// A lane by RDMA is a queue pair at either end. They are connected by the lane's own connection, which says nothing more after that: it ends
// with the process at either end, or with the queue pair, and the other end ends then. So such a lane is fenced as others are.

// openLocal opens the domain of this process's memory; nil without NICs.
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

// RegisterLocal registers memory of this process that batches read and write with the engine's NICs: what is not registered goes by other
// paths. Without NICs it does nothing. It pins the memory until the engine is closed. ErrExists for what is
// registered, ErrNotSupported for memory of another process, and what the NICs say, unless they are
// Options.NICsOptional.
func (e *Engine) RegisterLocal(r *mem.Region) error {
	if e.local == nil {
		return nil
	}
	if r.Origin() != nil {
		return fmt.Errorf("register local memory: the %s is another process's: %w", r, errdefs.ErrNotSupported)
	}
	if _, err := e.local.Register(r, 0); err != nil {
		if err = e.handleRefusal(err); err != nil {
			return fmt.Errorf("register local memory: %w", err)
		}
	}
	return nil
}

// refused is for what NICs have refused: nil where it goes by other paths.
func (e *Engine) handleRefusal(err error) error {
	switch {
	case errors.Is(err, errdefs.ErrExists) || errors.Is(err, errdefs.ErrClosed): // what the caller did
		return err
	case !e.o.NICsOptional:
		return fmt.Errorf("NICs that were asked for refuse it: give them what they lack, or ask for other paths: %w", err)
	}
	e.recordRefusal(err)
	return nil
}

// leaveOut counts what goes without NICs.
func (e *Engine) recordRefusal(why error) {
	e.counters.refusals.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusal = why
}

// rails are a NIC here and one there, by their indices.
type nicPair struct{ local, remote int }

// rest is for how long nothing is tried by such, after it went wrong: twice as long after each time until something goes well.
type backoff struct {
	until time.Time
	delay time.Duration
	err   error
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// tire has nothing begin by v for a while.
func (p *peer) backOff(v nicPair, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.backoffs[v]
	if r == nil {
		r = new(backoff)
		p.backoffs[v] = r
	}
	if now := time.Now(); !now.Before(r.until) { // else another queue pair said so before
		r.delay = min(max(2*r.delay, minBackoff), maxBackoff)
		r.until, r.err = now.Add(r.delay), why
	}
}

// rested notes that v works.
func (p *peer) resetBackoff(v nicPair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.backoffs, v)
}

// beginRDMA begins a part by a queue pair. An error says why that cannot be.
func (g *group) beginRDMA(ctx context.Context, p *part, forced Path) error {
	if err := p.buf.rdma(g.e); err != nil {
		return err
	}
	c, err := g.to.p.queue(ctx, g.to, forced == PathNone)
	if err != nil {
		return err
	}
	held, err := g.e.local.Hold(c.nics.local, p.extents())
	if err != nil {
		return &localError{err}
	}
	if err := g.send(p, PathRDMA, c, held); err != nil {
		held.Release()
		return err
	}
	return nil
}

// queue returns the queue pair to a segment with the least to do. spare leaves NICs alone that rest.
func (p *peer) queue(ctx context.Context, to *Remote, spare bool) (*conn, error) {
	here, there := len(p.e.o.NICs.Names()), to.nics()
	most := max(p.e.o.Lanes, here, there)
	return p.pick(ctx, to, most, func(ctx context.Context) (*conn, error) {
		v, err := p.choose(to, most, here, there, spare)
		if err != nil {
			return nil, err
		}
		c, err := p.openQueue(ctx, to, v)
		if err != nil {
			if ctx.Err() == nil { // else it was the batch that ended
				p.backOff(v, err)
			}
			return nil, fmt.Errorf("connect queue pair to engine at %s: %w", p.addr, err)
		}
		return c, nil
	})
}

// choose returns by which NICs the next of so many queue pairs goes.
func (p *peer) choose(to *Remote, most, here, there int, spare bool) (nicPair, error) {
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
		if r := p.backoffs[v]; r != nil && spare && time.Now().Before(r.until) {
			err = fmt.Errorf("it went wrong less than %v ago: %w", r.delay, r.err)
			continue
		}
		return v, nil
	}
	return nicPair{}, err
}

// openQueue makes a queue pair and has the peer make and connect another.
func (p *peer) openQueue(ctx context.Context, to *Remote, v nicPair) (*conn, error) {
	if err := p.isLost(); err != nil {
		return nil, err // a queue pair takes longer than to say so
	}
	q, err := p.e.local.Open(v.local)
	if err != nil {
		return nil, err
	}
	c, err := p.connect(ctx, to, v, q)
	if err != nil {
		p.e.local.Leave(q)
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
		if out.status == statusFailed { // what its NIC could not do now, as by a link that is down, it may later
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

// closeQueue returns when nothing of the queue touches memory any more, for which all wait who have some there, as long as their contexts say.
func closeQueue(q *rail.Queue) {
	for wait := time.Millisecond; q.Close() != nil; wait = min(2*wait, time.Second) {
		time.Sleep(wait)
	}
}

// queueLane is a lane that is a queue pair.
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
		job := rail.Job{Write: p.op == Write, Held: f.held, Local: p.extents(), Key: p.buf.Keys[c.nics.remote]}
		_ = p.shape.each(func(off, n int64) error { // which returns what this does
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
		c.paced.markProgress() // the lane gets on
		if err == nil {
			continue
		}
		if f := c.oldest(); f != nil && c.ctx.Err() == nil && errors.Is(err, errdefs.ErrInvalid) {
			f.cause = fmt.Errorf("the NICs refuse it: %w", err)
			return errors.New("a NIC refused a request of it") // of another part than those that are left
		}
		return c.broke(err)
	}
}

// listen waits for the other end to go, or for the lane to get nothing done for too long.
func (c *queueConn) listen() error {
	_, err := c.r.ReadByte()
	switch {
	case err == nil:
		return fmt.Errorf("the target sends something: %w", errdefs.ErrMismatch)
	case timedOut(err):
		return c.broke(fmt.Errorf("nothing completes: %w", err))
	}
	return err
}

// broke has the lane's NICs rest, and returns why the lane ends: with the error's text, since what it wraps is about no part.
func (c *queueConn) broke(err error) error {
	if c.ctx.Err() != nil {
		return errConnEnded
	}
	err = fmt.Errorf("queue pair: %s", err.Error())
	c.p.backOff(c.nics, err)
	return err
}
