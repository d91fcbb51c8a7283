package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// peer has the connections to another engine: one for control and several for data. They are opened
// on demand and replaced after a failure.
type peer struct {
	e    *Engine
	addr string
	id   share.Identity

	// Semaphores with one element: callLock is held during a control request, openLock while a conn
	// is opened, fenceLock during a fence.
	callLock, openLock, fenceLock chan struct{}
	control                       *controlConn // or nil

	refs int // number of Remotes; guarded by Engine.mu

	mu    sync.Mutex
	conns []*conn
	// unfenced has the numbers of ended conns whose writes may still arrive. The peer is kept until
	// all are fenced.
	unfenced map[uint64]struct{}
	fencing  bool  // fenceUntilDone is running
	died     int   // failed connections that were not yet replaced
	lostErr  error // permanent error because the engine is gone, or nil
	// error of the last dial if the connection was refused, or nil
	dialErr  error
	dialedAt time.Time            // time of that dial
	backoffs map[nicPair]*backoff // delays after failures, by pair of NICs

	// ctx ends when the peer is closed: it has no reference and no unfenced conn.
	ctx    context.Context
	cancel context.CancelFunc
}

type controlConn struct {
	*pacedConn
	r *bufferedConn
}

// dialTries is the number of consecutive refused dials after which an engine counts as lost.
const dialTries = 4

// dial opens a connection and exchanges hello and welcome. It returns the identity of the engine at
// the address.
func (e *Engine) dial(ctx context.Context, addr string, h hello) (_ *pacedConn, _ *bufferedConn, id share.Identity, err error) {
	h.from = e.id
	d := net.Dialer{Timeout: e.o.Stall}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, id, err
	}
	c := newPacedConn(raw, e.o.Stall)
	r := newBufferedConn(c, h.purpose)
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	c.expect(1)
	if _, err = c.Write(h.encode()); err == nil {
		id, err = readWelcome(r)
	}
	c.expect(-1)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, nil, id, errors.Join(err, ignoreClosed(raw.Close()))
	}
	return c, r, id, nil
}

// ignoreClosed returns nil for the error of a connection that was already closed.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// dial opens a connection to the peer. It returns ErrLost if another engine uses the address.
func (p *peer) dial(ctx context.Context, h hello) (*pacedConn, *bufferedConn, error) {
	if err := p.isLost(); err != nil {
		return nil, nil, err
	}
	h.to = p.id
	for n := 1; ; n++ {
		c, r, id, err := p.e.dial(ctx, p.addr, h)
		if err == nil && id != p.id {
			err = errors.Join(fmt.Errorf("engine %s has the address: %w", id, errdefs.ErrLost), ignoreClosed(c.Close()))
		}
		switch {
		case err == nil:
			p.countReconnect()
			return c, r, nil
		case errors.Is(err, errdefs.ErrLost):
			err = fmt.Errorf("engine %s at %s is gone and another engine has its address, as after a restart; open the segment again: %w", p.id, p.addr, err)
			p.mu.Lock()
			p.lostErr = err
			p.mu.Unlock()
			return nil, nil, err
		case !errors.Is(err, unix.ECONNREFUSED):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w", p.addr, err)
		case n == dialTries:
			return nil, nil, p.markAbsent(fmt.Errorf("no engine listens at %s: %w: %w", p.addr, errdefs.ErrLost, err))
		case !pause(ctx, time.Duration(n)*20*time.Millisecond):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w: %w", p.addr, context.Cause(ctx), err)
		}
	}
}

// countReconnect counts the connection if it replaces a failed one.
func (p *peer) countReconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died > 0 {
		p.died--
		p.e.carried.reconnects.Add(1)
	}
}

// absentTime is the time for which no dial is attempted after a refused one. Otherwise every part
// of a batch would dial.
const absentTime = time.Second

func (p *peer) markAbsent(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialErr, p.dialedAt = err, time.Now()
	return err
}

// isLost returns the reason for which no connection can be opened, or nil.
func (p *peer) isLost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lostErr == nil && p.dialErr != nil && time.Since(p.dialedAt) < absentTime {
		return p.dialErr
	}
	return p.lostErr
}

// call sends a request and decodes its reply into answer, which may be nil. If the connection
// fails, it retries once with a new one.
func (p *peer) call(ctx context.Context, t call, v, answer any) error {
	f, err := newFrame(t, v)
	if err != nil {
		return err
	}
	select {
	case p.callLock <- struct{}{}:
		defer func() { <-p.callLock }()
	case <-ctx.Done():
		return fmt.Errorf("call engine at %s: %w", p.addr, context.Cause(ctx))
	}
	if p.ctx.Err() != nil { // the new connection would never be closed
		return fmt.Errorf("call engine at %s: %w", p.addr, errdefs.ErrClosed)
	}
	var out frame
	for retry := p.control != nil; ; retry = false {
		out, err = p.exchange(ctx, &f)
		if err == nil || !retry || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := out.status.err(out.payload); err != nil {
		return err
	}
	if answer == nil {
		return nil
	}
	if err := out.decode(answer); err != nil {
		return &wire.AnswerError{Err: err}
	}
	return nil
}

// clearDialErr permits the next call to dial without waiting for absentTime.
func (p *peer) clearDialErr() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialErr = nil
}

// exchange sends a request over the control connection and returns the reply.
func (p *peer) exchange(ctx context.Context, f *frame) (out frame, err error) {
	if p.control == nil {
		c, r, err := p.dial(ctx, hello{purpose: forControl})
		if err != nil {
			return out, err
		}
		p.control = &controlConn{c, r}
	}
	if out, err = p.control.ask(ctx, f); err != nil {
		_ = p.control.Close()
		p.control = nil
		p.mu.Lock()
		p.died++
		p.mu.Unlock()
		return out, fmt.Errorf("call engine at %s: %w", p.addr, err)
	}
	return out, nil
}

// ask sends a request and returns its reply. After an error the caller closes the connection.
func (c *controlConn) ask(ctx context.Context, f *frame) (out frame, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	c.expect(1)
	if err = f.write(c); err == nil {
		out, err = readFrame(c.r)
	}
	c.expect(-1)
	if err == nil && (out.call != f.call || out.status == 0) {
		err = fmt.Errorf("a reply of type %d to a request of type %d: %w", out.call, f.call, errdefs.ErrMismatch)
	}
	if err != nil {
		err = &wire.AnswerError{Err: err}
	}
	if !stop() && err != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return out, err
}

// dataConn returns the least loaded conn over sockets. If all are busy, it opens another one unless
// there are Options.Lanes.
func (p *peer) dataConn(ctx context.Context) (*conn, error) {
	return p.pick(ctx, nil, p.e.o.Lanes, p.openSocket)
}

// pick returns the least loaded conn to a segment, or over sockets if to is nil. If all are busy
// and there are fewer than most, it opens another one. If opening fails, it returns a busy one.
func (p *peer) pick(ctx context.Context, to *Remote, most int, open func(context.Context) (*conn, error)) (*conn, error) {
	if c, ok := p.leastLoaded(to, most); ok {
		return c, nil
	}
	select {
	case p.openLock <- struct{}{}:
		defer func() { <-p.openLock }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to engine at %s: %w", p.addr, context.Cause(ctx))
	}
	c, ok := p.leastLoaded(to, most)
	if ok {
		return c, nil
	}
	another, err := open(ctx)
	if err != nil && c != nil {
		return c, nil
	}
	return another, err
}

// addConn adds a conn. The caller then runs it.
func (p *peer) addConn(c *conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return fmt.Errorf("engine at %s: %w", p.addr, errdefs.ErrClosed)
	}
	p.conns = append(p.conns, c)
	return nil
}

// leastLoaded returns the least loaded conn. ok is false if another one should be opened.
func (p *peer) leastLoaded(to *Remote, most int) (best *conn, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var least int64
	n := 0
	for _, c := range p.conns {
		if c.to != to {
			continue
		}
		n++
		if bytes := c.load(); best == nil || bytes < least {
			best, least = c, bytes
		}
	}
	return best, best != nil && (least == 0 || n >= most)
}

// closeConns ends the conns to a segment, or all conns if to is nil, and waits for them. It returns
// ErrBusy if ctx ends first, and may be retried.
func (p *peer) closeConns(ctx context.Context, to *Remote) error {
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	if to != nil {
		conns = slices.DeleteFunc(conns, func(c *conn) bool { return c.to != to })
	}
	for _, c := range conns {
		c.fail(fmt.Errorf("engine at %s: %w", p.addr, errdefs.ErrClosed))
	}
	for _, c := range conns {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("end %d connections to engine at %s: %w: %w", len(conns), p.addr, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	return nil
}

// removeConn removes a conn that ended with error why. unfenced means that its writes may still
// arrive at the target.
func (p *peer) removeConn(c *conn, why error, unfenced bool) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(other *conn) bool { return other == c })
	if !errors.Is(why, errdefs.ErrClosed) { // otherwise the peer is being closed
		p.died++
	}
	begin := false
	if unfenced && p.lostErr == nil {
		p.unfenced[c.number] = struct{}{}
		begin = !p.fencing
		p.fencing = true
	}
	p.mu.Unlock()
	if begin {
		p.e.start(p.fenceUntilDone)
	}
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// peer returns the peer with the address and identity. It adds a reference.
func (e *Engine) peer(addr string, id share.Identity) (*peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("transfer engine: %w", errdefs.ErrClosed)
	}
	k := peerKey{addr, id}
	p := e.peers[k]
	if p == nil {
		p = &peer{
			e: e, addr: addr, id: id, callLock: make(chan struct{}, 1), openLock: make(chan struct{}, 1), fenceLock: make(chan struct{}, 1),
			unfenced: make(map[uint64]struct{}), backoffs: make(map[nicPair]*backoff),
		}
		p.ctx, p.cancel = context.WithCancel(context.Background())
		e.peers[k] = p
	}
	p.refs++
	return p, nil
}

// unused reports whether the peer has no reference.
func (p *peer) unused() bool {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.refs == 0
}

// release drops a reference. If it was the last one and no conn is unfenced, it closes the
// connections. It returns ErrBusy if ctx ends first, and may be retried.
func (p *peer) release(ctx context.Context) error {
	e := p.e
	e.mu.Lock()
	if p.refs > 1 || p.hasUnfenced() {
		p.refs--
		e.mu.Unlock()
		return nil
	}
	p.unlist()
	e.mu.Unlock()
	return p.close(ctx)
}

// closeUnused closes a peer without references if no conn is unfenced or the engine is closing.
func (p *peer) closeUnused(ctx context.Context) error {
	e := p.e
	e.mu.Lock()
	if p.refs > 0 || p.hasUnfenced() && !e.closed {
		e.mu.Unlock()
		return nil
	}
	p.unlist()
	e.mu.Unlock()
	return p.close(ctx)
}

// unlist removes the peer from the engine. The caller holds Engine.mu.
func (p *peer) unlist() {
	if k := (peerKey{p.addr, p.id}); p.e.peers[k] == p {
		delete(p.e.peers, k)
	}
}

// close closes the connections. It returns ErrBusy if ctx ends first, and may be retried.
func (p *peer) close(ctx context.Context) error {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	if err := p.closeConns(ctx, nil); err != nil {
		return err
	}
	select {
	case p.callLock <- struct{}{}:
		defer func() { <-p.callLock }()
	case <-ctx.Done():
		return fmt.Errorf("end calls of engine at %s: %w: %w", p.addr, errdefs.ErrBusy, context.Cause(ctx))
	}
	if p.control != nil {
		_ = p.control.Close()
		p.control = nil
	}
	return nil
}
