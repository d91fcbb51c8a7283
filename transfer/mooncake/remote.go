package mooncake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Options say how a Remote is reached. Zero values are the defaults.
type Options struct {
	// Directory finds the segment; the default is that of P2PHANDSHAKE.
	Directory Directory
	// Memory is what tasks name as local. Must be set.
	Memory *Regions
	// Lanes is how many connections carry the parts of batches at the same time. 4
	Lanes int
	// StallTime is how long a request under way may bring no byte. 30 seconds
	StallTime time.Duration
}

// What is on the way of one connection at a time, and of what length parts of tasks are.
const (
	windowParts = 64
	windowBytes = 4 << 20
	partBytes   = 4 << 20
	maxQueued   = 1 << 20 // parts
)

// freshTime is how old a description may be that a connection is opened by: as old as one that another lane has just had.
const freshTime = 100 * time.Millisecond

func (o *Options) setDefaults() {
	if o.Directory == nil {
		o.Directory = p2p{}
	}
	if o.Lanes == 0 {
		o.Lanes = 4
	}
	if o.StallTime == 0 {
		o.StallTime = 30 * time.Second
	}
}

// Remote is another process's segment. It keeps its connections until it is closed, and opens others in place of those that end: a
// target that was restarted is found again.
type Remote struct {
	o      Options
	name   string
	ctx    context.Context //nolint:containedctx // the remote's life, which its lanes share
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // of all below
	segment *Segment
	// described is when segment was had.
	described time.Time
	queue     []*part // in order; of those before next nothing is left
	next      int
	lanes     []*lane
	idleLanes int // lanes that wait for a part
	closed    bool
}

// Open finds a segment. Errors: ErrNotFound where there is none of the name, ErrNotSupported for one that is not reached by tcp, and what the
// directory failed with.
func Open(ctx context.Context, segment string, o Options) (*Remote, error) {
	o.setDefaults()
	if o.Memory == nil || o.Lanes < 1 || o.Lanes > 256 || o.StallTime < 0 {
		return nil, fmt.Errorf("open segment %s: Memory must be set, Lanes (%d) be 1 to 256, StallTime (%v) not be negative: %w", segment, o.Lanes, o.StallTime, errdefs.ErrInvalid)
	}
	r := &Remote{o: o, name: segment}
	r.changed.L = &r.mu
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if _, err := r.refresh(ctx); err != nil {
		r.cancel()
		return nil, fmt.Errorf("open segment %s: %w", segment, err)
	}
	return r, nil
}

// Segment returns the description that was had last. It is not to be changed.
func (r *Remote) Segment() *Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.segment
}

// refresh asks the directory anew.
func (r *Remote) refresh(ctx context.Context) (*Segment, error) {
	s, err := r.o.Directory.Find(ctx, r.name)
	switch {
	case err != nil:
		return nil, err
	case s.Protocol != ProtocolTCP:
		return nil, fmt.Errorf("it is reached by %q, and only %s is spoken here: %w", s.Protocol, ProtocolTCP, errdefs.ErrNotSupported)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segment, r.described = s, time.Now()
	return s, nil
}

// Submit begins a batch, of at least one task. All of it is accepted, or nothing. ctx bounds the batch, not only the call: once it ends,
// the connections on which tasks of the batch are under way are closed, since nothing else calls them back, and writes of other batches
// that share them fail as well. Tasks of a batch take effect in any order. The local memory of a task is not to be touched until the batch is done.
//
// Errors: ErrInvalid for a task without length, or whose memory is not registered here or there; ErrBusy where too much is queued; ErrClosed.
func (r *Remote) Submit(ctx context.Context, tasks []Task) (*Batch, error) {
	if err := r.check(ctx, tasks); err != nil {
		return nil, fmt.Errorf("submit to segment %s: %w", r.name, err)
	}
	b := &Batch{ctx: ctx, r: r, done: make(chan struct{}), tasks: make([]taskState, len(tasks))}
	b.left.Store(int64(len(tasks)))
	parts := make([]*part, 0, len(tasks))
	for i, t := range tasks {
		n := int64(0)
		for at := uint64(0); at < t.Length; at += partBytes {
			p := &part{b: b, index: i, Task: Task{Op: t.Op, Local: t.Local + at, Remote: t.Remote + at, Length: min(partBytes, t.Length-at)}}
			parts = append(parts, p)
			n++
		}
		b.tasks[i].parts.Store(n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, fmt.Errorf("submit to segment %s: %w", r.name, errdefs.ErrClosed)
	case len(r.queue)-r.next+len(parts) > maxQueued:
		return nil, fmt.Errorf("submit to segment %s: %d parts beside %d that wait are more than %d: %w", r.name, len(parts), len(r.queue)-r.next, maxQueued, errdefs.ErrBusy)
	}
	// Before the first part goes, so that no part is final before there is something to stop.
	b.stop = context.AfterFunc(ctx, func() { r.cancelBatch(b) })
	r.queue = append(r.queue, parts...)
	for r.idleLanes < len(parts) && len(r.lanes) < r.o.Lanes {
		l := &lane{r: r}
		r.lanes = append(r.lanes, l)
		r.idleLanes++
		r.wg.Go(l.run)
	}
	r.changed.Broadcast()
	return b, nil
}

// check reports tasks that cannot be. A buffer that the segment had not when it was last described, it may have now.
func (r *Remote) check(ctx context.Context, tasks []Task) error {
	if len(tasks) == 0 {
		return fmt.Errorf("there is no task: %w", errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrCanceled, context.Cause(ctx))
	}
	s := r.Segment()
	asked := false
	for i, t := range tasks {
		if t.Op != Read && t.Op != Write || t.Length == 0 {
			return fmt.Errorf("task %d: %s %d bytes: %w", i, t.Op, t.Length, errdefs.ErrInvalid)
		}
		if err := r.o.Memory.Check(t.Local, t.Length); err != nil {
			return fmt.Errorf("task %d: local memory: %w", i, err)
		}
		if !s.holds(t.Remote, t.Length) && !asked {
			var err error
			if s, err = r.refresh(ctx); err != nil {
				return err
			}
			asked = true
		}
		if !s.holds(t.Remote, t.Length) {
			return fmt.Errorf("task %d: %d bytes at %#x are not registered there: %w", i, t.Length, t.Remote, errdefs.ErrInvalid)
		}
	}
	return nil
}

// abandon has a batch whose context has ended stop: what waits is passed over, and what is under way is stopped with its connection.
func (r *Remote) cancelBatch(b *Batch) {
	r.mu.Lock()
	gone := r.drop(b)
	for _, l := range r.lanes {
		if slices.ContainsFunc(l.inFlight, func(p *part) bool { return p.b == b }) {
			l.kill(errBatchCanceled)
		}
	}
	r.mu.Unlock()
	for _, p := range gone {
		p.finish(p.failureOf(errBatchCanceled))
	}
}

var errBatchCanceled = fmt.Errorf("the connection was closed for a batch that was given up: %w", errdefs.ErrBroken)

// drop takes a batch's parts, or all of them where b is nil, out of the queue. The lock is held.
func (r *Remote) drop(b *Batch) []*part {
	var gone, kept []*part
	for _, p := range r.queue[r.next:] {
		if b == nil || p.b == b {
			gone = append(gone, p)
		} else {
			kept = append(kept, p)
		}
	}
	r.queue, r.next = kept, 0
	return gone
}

// connect opens a connection to the segment's data port. A description that is not fresh is had anew, since the target may have been restarted and its
// port be another's by now; where the directory does not answer, the old one has to do.
func (r *Remote) connect(ctx context.Context) (net.Conn, *Segment, error) {
	r.mu.Lock()
	s, fresh := r.segment, time.Since(r.described) < freshTime
	r.mu.Unlock()
	var asking error
	if !fresh {
		var now *Segment
		now, asking = r.refresh(ctx)
		switch {
		case asking == nil:
			s = now
		case errors.Is(asking, errdefs.ErrNotFound) || errors.Is(asking, errdefs.ErrNotSupported):
			return nil, nil, asking
		}
	}
	c, err := dial(ctx, s.dataAddr())
	if err != nil {
		return nil, nil, errors.Join(err, asking)
	}
	return c, s, nil
}

// Close ends every connection; tasks that are not final fail with ErrClosed. No local memory is touched when it returns. Close is idempotent.
func (r *Remote) Close() error {
	r.mu.Lock()
	r.closed = true
	r.cancel() // after that, which says why what it ends fails
	gone := r.drop(nil)
	for _, l := range r.lanes {
		l.kill(errdefs.ErrClosed)
	}
	r.changed.Broadcast()
	r.mu.Unlock()
	for _, p := range gone {
		p.finish(Failed, errdefs.ErrClosed)
	}
	r.wg.Wait()
	return nil
}
