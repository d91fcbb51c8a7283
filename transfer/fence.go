package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// fence fences the peer's ended conns. Nothing may be sent to the peer before fence returns nil. It
// returns ErrLost if the peer's engine is gone; then nothing can access its memory any more.
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

// hasUnfenced reports whether earlier writes may still arrive in the peer's memory.
func (p *peer) hasUnfenced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unfenced) > 0 && p.lostErr == nil
}

// fenceUntilDone retries fence in the background until it succeeds or the engine closes, after
// which Close continues. It stops if the address does not listen and no Remote uses the peer. In
// that case, opening a segment of the peer fences it.
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
	// The error is ignored: conns end by themselves, and Engine.Close reports errors.
	_ = p.closeUnused(context.Background())
}

// fenceAndClose fences the peer and closes its connections. It is used by Engine.Close. A peer
// whose engine is gone needs no fence. It returns ErrBusy if ctx ends first.
func (p *peer) fenceAndClose(ctx context.Context) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := p.fence(ctx)
		if err == nil || errors.Is(err, errdefs.ErrLost) {
			return p.closeUnused(ctx)
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("earlier writes to engine %s at %s may still reach its memory: %w: %w", p.id, p.addr, errdefs.ErrBusy, err)
		}
	}
}
