package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
)

// group is the part of a batch for one segment. Only one goroutine uses it.
type group struct {
	b        *Batch
	e        *Engine
	to       *Remote
	todo     []*part
	inFlight map[*part]func(error) // functions that abort the parts
	bytes    int64                 // total length of the parts in inFlight
	results  chan result
	// After a failure, no part begins for retryDelay. The delay doubles with each failure until a
	// part succeeds.
	retryDelay time.Duration
	retryTimer <-chan time.Time // nil: no delay is active
	lastErr    error            // error of the last failed part
}

type result struct {
	p    *part
	path Path
	err  error
}

// Limits of a group.
const (
	maxInFlight = 256
	minWait     = 5 * time.Millisecond
	maxWait     = time.Second
)

func newGroup(b *Batch, to *Remote, parts []*part) *group {
	return &group{b: b, e: b.e, to: to, todo: parts, inFlight: make(map[*part]func(error)), results: make(chan result, maxInFlight)}
}

// run executes the parts. When it returns, their local memory is no longer accessed.
func (g *group) run(ctx context.Context) {
	ended := ctx.Done()
	for {
		g.fill(ctx)
		if len(g.inFlight) == 0 && (len(g.todo) == 0 || ctx.Err() != nil) {
			break
		}
		select {
		case r := <-g.results:
			g.handleResult(ctx, r)
		case <-g.retryTimer:
			g.retryTimer = nil
		case <-ended:
			ended = nil
			for _, abort := range g.inFlight {
				abort(context.Cause(ctx))
			}
		}
	}
	for _, p := range g.todo {
		g.b.partDone(p, PathNone, errors.Join(context.Cause(ctx), g.lastErr))
	}
}

// fill begins parts until the limits are reached.
func (g *group) fill(ctx context.Context) {
	window := 2 * int64(g.e.o.Lanes) * g.e.o.PartBytes
	for ctx.Err() == nil && g.retryTimer == nil && len(g.todo) > 0 && len(g.inFlight) < maxInFlight && (len(g.inFlight) < 2 || g.bytes < window) {
		p := g.todo[0]
		g.todo = g.todo[1:]
		err := g.begin(ctx, p)
		switch {
		case err == nil:
		case conclusive(err):
			g.b.partDone(p, PathNone, err)
		default:
			g.retry(p, err)
		}
	}
}

// begin begins a part on the first path that supports it.
func (g *group) begin(ctx context.Context, p *part) error {
	if err := g.to.p.fence(ctx); err != nil {
		return err
	}
	forced := g.b.o.Path
	mayBe := func(path Path) bool { return forced == path || forced == PathNone && p.minPath <= path }
	if mayBe(PathNVLink) || mayBe(PathShm) {
		err := g.beginImported(ctx, p, forced)
		if err == nil || forced != PathNone {
			return err
		}
		p.minPath = PathRDMA
		if p.buf.Share != nil && g.e.o.Importer != nil {
			g.b.recordFallback(err)
		}
	}
	if mayBe(PathRDMA) {
		err := g.beginRDMA(ctx, p, forced)
		if err == nil || forced != PathNone || ctx.Err() != nil {
			return err
		}
		p.minPath = PathTCP
		if p.buf.rdma(g.e) == nil {
			g.b.recordFallback(err)
		}
	}
	c, err := g.to.p.dataConn(ctx)
	if err != nil {
		return err
	}
	return g.send(p, PathTCP, c, nil)
}

// send submits a part to a conn.
func (g *group) send(p *part, path Path, c *conn, lease *rail.Lease) error {
	f, err := c.submit(p, lease, func(err error) {
		if lease != nil {
			lease.Release()
		}
		g.results <- result{p, path, err}
	})
	if err != nil {
		return err
	}
	g.track(p, func(why error) { c.abort(f, why) })
	return nil
}

func (g *group) beginImported(ctx context.Context, p *part, forced Path) error {
	var path Path
	by := make(chan Path, 1)
	path, abort, err := g.e.beginImported(ctx, p, forced, func(err error) { g.results <- result{p, <-by, err} })
	if err != nil {
		switch {
		case forced == PathNone:
			return err
		case errors.Is(err, errdefs.ErrNotSupported):
			return fmt.Errorf("path %s: %w", forced, err)
		}
		return fmt.Errorf("path %s: %w: %w", forced, errdefs.ErrNotSupported, err)
	}
	by <- path
	g.track(p, func(error) { abort() })
	return nil
}

func (g *group) track(p *part, abort func(error)) {
	g.inFlight[p] = abort
	g.bytes += p.bytes
}

// handleResult records the result of a part, or queues the part for a retry.
func (g *group) handleResult(ctx context.Context, r result) {
	delete(g.inFlight, r.p)
	g.bytes -= r.p.bytes
	switch {
	case r.err == nil:
		g.retryDelay, g.lastErr = 0, nil
		g.b.partDone(r.p, r.path, nil)
	case ctx.Err() != nil && !conclusive(r.err):
		g.todo = append(g.todo, r.p) // run fails the part with the cause of ctx
	case r.path != PathTCP && g.b.o.Path == PathNone:
		r.p.minPath = max(r.path+1, PathRDMA)
		g.b.recordFallback(r.err)
		g.b.countRetry()
		g.todo = append(g.todo, r.p)
	case r.path < PathRDMA || conclusive(r.err):
		g.b.partDone(r.p, r.path, r.err)
	default:
		g.retry(r.p, r.err)
	}
}

// retry queues a part again and starts the delay.
func (g *group) retry(p *part, err error) {
	g.lastErr = err
	g.todo = append(g.todo, p)
	g.b.countRetry()
	if g.retryTimer == nil {
		g.retryDelay = min(max(2*g.retryDelay, minWait), maxWait)
		g.retryTimer = time.After(g.retryDelay)
	}
}

// conclusive reports whether a retry would fail with the same error.
func conclusive(err error) bool {
	var refused *refusal
	var local *localError
	switch {
	case errors.As(err, &refused):
		return !errors.Is(err, errdefs.ErrBusy)
	case errors.As(err, &local):
		return true
	}
	return errors.Is(err, errdefs.ErrLost) || errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errdefs.ErrInvalid) || errors.Is(err, errdefs.ErrClosed)
}
