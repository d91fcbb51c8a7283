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

// peer is another engine, as this one reaches it: one control connection and some lanes, made when they are needed, and made again.
type peer struct {
	e    *Engine
	addr string
	id   share.Identity

	// Tokens: for who uses the control connection, opens a lane, fences.
	calling, opening, settling chan struct{}
	control                    *controlConn // nil: there is none

	refs int // Remotes; with Engine.mu

	mu      sync.Mutex
	lanes   []*lane
	owed    map[uint64]struct{} // lanes that are dead, and not fenced: the peer is kept until they are, whoever uses it
	fencing bool                // somebody is at it in the background
	died    int                 // connections that ended by themselves and have no successor yet
	lost    error               // why no connection will ever be had
	absent  error               // nobody listened the last time that somebody looked
	looked  time.Time           // when that was
	rests   map[rails]*rest     // of NICs by which it went wrong

	// ctx ends when nobody uses the peer any more and it is owed nothing.
	ctx    context.Context
	cancel context.CancelFunc
}

type controlConn struct {
	*pacedConn
	r *inlet
}

// tries is how often in a row nobody may listen at an address, before its engine is taken for dead.
const tries = 4

// dial opens a connection and greets. The identity is of who answered.
func (e *Engine) dial(ctx context.Context, addr string, h hello) (_ *pacedConn, _ *inlet, id share.Identity, err error) {
	h.from = e.id
	d := net.Dialer{Timeout: e.o.Stall}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, id, err
	}
	c := newPacedConn(raw, e.o.Stall)
	r := newInlet(c, h.purpose)
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
		return nil, nil, id, errors.Join(err, quiet(raw.Close()))
	}
	return c, r, id, nil
}

// quiet is nil for what was closed already.
func quiet(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// dial opens a connection to the peer, and none to another engine at its address: ErrLost.
func (p *peer) dial(ctx context.Context, h hello) (*pacedConn, *inlet, error) {
	if err := p.isLost(); err != nil {
		return nil, nil, err
	}
	h.to = p.id
	for n := 1; ; n++ {
		c, r, id, err := p.e.dial(ctx, p.addr, h)
		if err == nil && id != p.id {
			err = errors.Join(fmt.Errorf("engine %s answers: %w", id, errdefs.ErrLost), quiet(c.Close()))
		}
		switch {
		case err == nil:
			p.replaced()
			return c, r, nil
		case errors.Is(err, errdefs.ErrLost):
			err = fmt.Errorf("engine %s at %s is gone and another one is there, as after a restart; open the segment again: %w", p.id, p.addr, err)
			p.mu.Lock()
			p.lost = err
			p.mu.Unlock()
			return nil, nil, err
		case !errors.Is(err, unix.ECONNREFUSED):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w", p.addr, err)
		case n == tries:
			return nil, nil, p.miss(fmt.Errorf("nobody listens at %s: %w: %w", p.addr, errdefs.ErrLost, err))
		case !pause(ctx, time.Duration(n)*20*time.Millisecond):
			return nil, nil, fmt.Errorf("connect to engine at %s: %w: %w", p.addr, context.Cause(ctx), err)
		}
	}
}

// replaced counts a connection that takes the place of one that died.
func (p *peer) replaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died > 0 {
		p.died--
		p.e.carried.reconnects.Add(1)
	}
}

// missed is for how long nobody looks whether somebody listens, after nobody did: every part of a batch would.
const missed = time.Second

func (p *peer) miss(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.absent, p.looked = err, time.Now()
	return err
}

// isLost returns why no connection can be had, or nil.
func (p *peer) isLost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil && p.absent != nil && time.Since(p.looked) < missed {
		return p.absent
	}
	return p.lost
}

// call makes a request and reads its reply into answer, if that is not nil. A connection that failed is made again, once.
func (p *peer) call(ctx context.Context, t call, v, answer any) error {
	f, err := newFrame(t, v)
	if err != nil {
		return err
	}
	select {
	case p.calling <- struct{}{}:
		defer func() { <-p.calling }()
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
func (p *peer) lookAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.absent = nil
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
func (p *peer) lane(ctx context.Context) (*lane, error) {
	return p.pick(ctx, nil, p.e.o.Lanes, p.openSocket)
}

// pick returns the lane to a segment, or over sockets, with the least to do; another one, if all have something to do and there may be more
// than those: as long as it can be opened.
func (p *peer) pick(ctx context.Context, to *Remote, most int, open func(context.Context) (*lane, error)) (*lane, error) {
	if l, ok := p.idlest(to, most); ok {
		return l, nil
	}
	select {
	case p.opening <- struct{}{}:
		defer func() { <-p.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to engine at %s: %w", p.addr, context.Cause(ctx))
	}
	l, ok := p.idlest(to, most)
	if ok {
		return l, nil
	}
	another, err := open(ctx)
	if err != nil && l != nil {
		return l, nil
	}
	return another, err
}

// keep takes in a lane that is to run.
func (p *peer) keep(l *lane) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return fmt.Errorf("engine at %s: %w", p.addr, errdefs.ErrClosed)
	}
	p.lanes = append(p.lanes, l)
	return nil
}

// idlest returns the lane with the least to do, and whether it will do.
func (p *peer) idlest(to *Remote, most int) (best *lane, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var least int64
	n := 0
	for _, l := range p.lanes {
		if l.to != to {
			continue
		}
		n++
		if bytes := l.load(); best == nil || bytes < least {
			best, least = l, bytes
		}
	}
	return best, best != nil && (least == 0 || n >= most)
}

// end ends the lanes to a segment, or all, and returns when nothing of them runs any more. ErrBusy if ctx ends first; it may be called again.
func (p *peer) end(ctx context.Context, to *Remote) error {
	p.mu.Lock()
	lanes := slices.Clone(p.lanes)
	p.mu.Unlock()
	if to != nil {
		lanes = slices.DeleteFunc(lanes, func(l *lane) bool { return l.to != to })
	}
	for _, l := range lanes {
		l.fail(fmt.Errorf("engine at %s: %w", p.addr, errdefs.ErrClosed))
	}
	for _, l := range lanes {
		select {
		case <-l.over:
		case <-ctx.Done():
			return fmt.Errorf("end %d connections to engine at %s: %w: %w", len(lanes), p.addr, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	return nil
}

// drop forgets a lane that is dead, and why; owed says that something of it may still reach memory of the target.
func (p *peer) drop(l *lane, why error, owed bool) {
	p.mu.Lock()
	p.lanes = slices.DeleteFunc(p.lanes, func(other *lane) bool { return other == l })
	if !errors.Is(why, errdefs.ErrClosed) { // else nobody uses it any more
		p.died++
	}
	begin := false
	if owed && p.lost == nil {
		p.owed[l.number] = struct{}{}
		begin = !p.fencing
		p.fencing = true
	}
	p.mu.Unlock()
	if begin {
		p.e.start(p.fence)
	}
}

// settle fences the lanes that are owed. Nothing may be sent to the peer before it has returned nil. What an engine that is gone could
// have got, nobody can get any more: ErrLost.
func (p *peer) settle(ctx context.Context) error {
	if len(p.debts()) == 0 {
		return nil
	}
	select {
	case p.settling <- struct{}{}:
		defer func() { <-p.settling }()
	case <-ctx.Done():
		return fmt.Errorf("fence engine at %s: %w", p.addr, context.Cause(ctx))
	}
	lanes := p.debts()
	if len(lanes) == 0 {
		return nil
	}
	if err := p.call(ctx, callFence, fenceRequest{Lanes: lanes}, nil); err != nil {
		return fmt.Errorf("fence %d connections: %w", len(lanes), err)
	}
	p.e.counters.fences.Add(int64(len(lanes)))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range lanes {
		delete(p.owed, n)
	}
	return nil
}

func (p *peer) debts() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.owed))
}

// owes reports whether something that was sent to the peer may still reach memory there.
func (p *peer) owes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.owed) > 0 && p.lost == nil
}

// fence settles in the background, until it has, or the engine closes, which goes on with it. Where nobody listens and nobody uses the peer it
// leaves that to who opens a segment of it again.
func (p *peer) fence() {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := p.settle(p.e.ctx)
		if p.e.ctx.Err() != nil {
			return
		}
		unused := errors.Is(err, errdefs.ErrLost) && p.unused()
		p.mu.Lock()
		over := unused || p.lost != nil || err == nil && len(p.owed) == 0
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
	_ = p.forget(context.Background()) // lanes end by themselves, and who closes the engine says whom it waits for
}

// finish settles, and ends what is left of the peer as the engine closes. An engine that is gone is owed nothing. ErrBusy if ctx ends first.
func (p *peer) finish(ctx context.Context) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := p.settle(ctx)
		if err == nil || errors.Is(err, errdefs.ErrLost) {
			return p.forget(ctx)
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("what was sent to engine %s at %s may still reach its memory: %w: %w", p.id, p.addr, errdefs.ErrBusy, err)
		}
	}
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes)
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
			e: e, addr: addr, id: id, calling: make(chan struct{}, 1), opening: make(chan struct{}, 1), settling: make(chan struct{}, 1),
			owed: make(map[uint64]struct{}), rests: make(map[rails]*rest),
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
	if p.refs > 1 || p.owes() {
		p.refs--
		e.mu.Unlock()
		return nil
	}
	p.unlist()
	e.mu.Unlock()
	return p.leave(ctx)
}

// forget ends what release has left, once nothing is owed, or the engine closes.
func (p *peer) forget(ctx context.Context) error {
	e := p.e
	e.mu.Lock()
	if p.refs > 0 || p.owes() && !e.closed {
		e.mu.Unlock()
		return nil
	}
	p.unlist()
	e.mu.Unlock()
	return p.leave(ctx)
}

// unlist has nobody get another reference. The engine's mu is held.
func (p *peer) unlist() {
	if k := (peerKey{p.addr, p.id}); p.e.peers[k] == p {
		delete(p.e.peers, k)
	}
}

// leave ends the connections. ErrBusy if ctx ends first; it may be called again.
func (p *peer) leave(ctx context.Context) error {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	if err := p.end(ctx, nil); err != nil {
		return err
	}
	select {
	case p.calling <- struct{}{}:
		defer func() { <-p.calling }()
	case <-ctx.Done():
		return fmt.Errorf("end calls of engine at %s: %w: %w", p.addr, errdefs.ErrBusy, context.Cause(ctx))
	}
	if p.control != nil {
		_ = p.control.Close()
		p.control = nil
	}
	return nil
}
