package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// peer is another engine, as this one reaches it: one control connection and some conns, made when they are needed, and made again.
type peer struct {
	e    *Engine
	addr string
	id   share.Identity

	// Tokens: for who uses the control connection, opens a lane, fences.
	callLock, openLock, fenceLock chan struct{}
	control                       *controlConn // nil: there is none

	refs int // Remotes; with Engine.mu

	mu       sync.Mutex
	conns    []*conn
	unfenced map[uint64]struct{}  // conns that are dead, and not fenced: the peer is kept until they are, whoever uses it
	fencing  bool                 // somebody is at it in the background
	died     int                  // connections that ended by themselves and have no successor yet
	lostErr  error                // why no connection will ever be had
	dialErr  error                // nobody listened the last time that somebody looked
	dialedAt time.Time            // when that was
	backoffs map[nicPair]*backoff // of NICs by which it went wrong

	// ctx ends when nobody uses the peer any more and it is owed nothing.
	ctx    context.Context
	cancel context.CancelFunc
}

type controlConn struct {
	*pacedConn
	r *bufferedConn
}

// tries is how often in a row nobody may listen at an address, before its engine is taken for dead.
const dialTries = 4

// dial opens a connection and greets. The identity is of who answered.
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

// quiet is nil for what was closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// dial opens a connection to the peer, and none to another engine at its address: ErrLost.
func (p *peer) dial(ctx context.Context, h hello) (*pacedConn, *bufferedConn, error) {
	if err := p.isLost(); err != nil {
		return nil, nil, err
	}
	h.to = p.id
	for n := 1; ; n++ {
		c, r, id, err := p.e.dial(ctx, p.addr, h)
		if err == nil && id != p.id {
			err = errors.Join(fmt.Errorf("engine %s answers: %w", id, errdefs.ErrLost), ignoreClosed(c.Close()))
		}
		switch {
		case err == nil:
			p.countReconnect()
			return c, r, nil
		case errors.Is(err, errdefs.ErrLost):
			err = fmt.Errorf("engine %s at %s is gone and another one is there, as after a restart; open the segment again: %w", p.id, p.addr, err)
			p.mu.Lock()
			p.lostErr = err
			p.mu.Unlock()
			return nil, nil, err
		case !errors.Is(err, unix.ECONNREFUSED):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w", p.addr, err)
		case n == dialTries:
			return nil, nil, p.markAbsent(fmt.Errorf("nobody listens at %s: %w: %w", p.addr, errdefs.ErrLost, err))
		case !pause(ctx, time.Duration(n)*20*time.Millisecond):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w: %w", p.addr, context.Cause(ctx), err)
		}
	}
}

// replaced counts a connection that takes the place of one that died.
func (p *peer) countReconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died > 0 {
		p.died--
		p.e.carried.reconnects.Add(1)
	}
}

// missed is for how long nobody looks whether somebody listens, after nobody did: every part of a batch would.
const absentTime = time.Second

func (p *peer) markAbsent(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialErr, p.dialedAt = err, time.Now()
	return err
}

// isLost returns why no connection can be had, or nil.
func (p *peer) isLost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lostErr == nil && p.dialErr != nil && time.Since(p.dialedAt) < absentTime {
		return p.dialErr
	}
	return p.lostErr
}

// call makes a request and reads its reply into answer, if that is not nil. A connection that failed is made again, once.
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
	if p.ctx.Err() != nil { // nobody would close the connection
		return fmt.Errorf("call engine at %s: %w", p.addr, errdefs.ErrClosed)
	}
	var out frame
	for again := p.control != nil; ; again = false {
		out, err = p.exchange(ctx, &f)
		if err == nil || !again || ctx.Err() != nil {
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

// lookAgain has the next call connect although nothing listened a moment ago: another process may
// do by now.
func (p *peer) clearDialErr() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialErr = nil
}

// exchange is one try of call.
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

// ask makes a request and reads its reply. Where it fails, close the connection.
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

// lane returns the lane over sockets with the least to do; another one, if all have something to do and there may be more.
func (p *peer) dataConn(ctx context.Context) (*conn, error) {
	return p.pick(ctx, nil, p.e.o.Lanes, p.openSocket)
}

// pick returns the lane to a segment, or over sockets, with the least to do; another one, if all have something to do and there may be more
// than those: as long as it can be opened.
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

// keep takes in a lane that is to run.
func (p *peer) addConn(c *conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return fmt.Errorf("engine at %s: %w", p.addr, errdefs.ErrClosed)
	}
	p.conns = append(p.conns, c)
	return nil
}

// idlest returns the lane with the least to do, and whether it will do.
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

// end ends the conns to a segment, or all, and returns when nothing of them runs any more. ErrBusy if ctx ends first; it may be called again.
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

// drop forgets a lane that is dead, and why; owed says that something of it may still reach memory of the target.
func (p *peer) removeConn(c *conn, why error, unfenced bool) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(other *conn) bool { return other == c })
	if !errors.Is(why, errdefs.ErrClosed) { // else nobody uses it any more
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

// settle fences the conns that are owed. Nothing may be sent to the peer before it has returned nil. What an engine that is gone could
// have got, nobody can get any more: ErrLost.
func (p *peer) fence(ctx context.Context) error {
	if len(p.unfencedConns()) == 0 {
		return nil
	}
	select {
	case p.fenceLock <- struct{}{}:
		defer func() { <-p.fenceLock }()
	case <-ctx.Done():
		return fmt.Errorf("fence engine at %s: %w", p.addr, context.Cause(ctx))
	}
	conns := p.unfencedConns()
	if len(conns) == 0 {
		return nil
	}
	if err := p.call(ctx, callFence, fenceRequest{Lanes: conns}, nil); err != nil {
		return fmt.Errorf("fence %d connections: %w", len(conns), err)
	}
	p.e.counters.fences.Add(int64(len(conns)))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range conns {
		delete(p.unfenced, n)
	}
	return nil
}

func (p *peer) unfencedConns() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.unfenced))
}

// owes reports whether something that was sent to the peer may still reach memory there.
func (p *peer) hasUnfenced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unfenced) > 0 && p.lostErr == nil
}

// fence settles in the background, until it has, or the engine closes, which goes on with it. Where nobody listens and nobody uses the peer it
// leaves that to who opens a segment of it again.
func (p *peer) fenceUntilDone() {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := p.fence(p.e.ctx)
		if p.e.ctx.Err() != nil {
			return
		}
		unused := errors.Is(err, errdefs.ErrLost) && p.unused()
		p.mu.Lock()
		over := unused || p.lostErr != nil || err == nil && len(p.unfenced) == 0
		if over {
			p.fencing = false
		}
		p.mu.Unlock()
		if over {
			break
		}
		if err != nil {
			pause(p.e.ctx, wait)
		}
	}
	_ = p.closeUnused(context.Background()) // conns end by themselves, and who closes the engine says whom it waits for
}

// finish settles, and ends what is left of the peer as the engine closes. An engine that is gone is owed nothing. ErrBusy if ctx ends first.
func (p *peer) fenceAndClose(ctx context.Context) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := p.fence(ctx)
		if err == nil || errors.Is(err, errdefs.ErrLost) {
			return p.closeUnused(ctx)
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("what was sent to engine %s at %s may still reach its memory: %w: %w", p.id, p.addr, errdefs.ErrBusy, err)
		}
	}
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// peer returns the peer at an address, with a reference.
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

// unused reports whether no Remote has the peer.
func (p *peer) unused() bool {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.refs == 0
}

// release gives a reference back. With the last the connections end, unless a fence is owed: ErrBusy if ctx ends first, and then it may be called
// again.
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

// forget ends what release has left, once nothing is owed, or the engine closes.
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

// unlist has nobody get another reference. The engine's mu is held.
func (p *peer) unlist() {
	if k := (peerKey{p.addr, p.id}); p.e.peers[k] == p {
		delete(p.e.peers, k)
	}
}

// leave ends the connections. ErrBusy if ctx ends first; it may be called again.
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
