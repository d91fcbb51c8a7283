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
	"github.com/kvlane/kvlane/transfer"
)

// Options are the options of a Remote. Zero values are the defaults.
type Options struct {
	// Directory finds the segment. Default: the directory for P2PHANDSHAKE.
	Directory Directory
	// Memory is the local memory of tasks. Required.
	Memory *Regions
	// Lanes is the number of connections. Default 4.
	Lanes int
	// StallTime is the maximum time without a byte before a request fails. Default 30 s.
	StallTime time.Duration
}

// Limits of the requests in progress on one connection, of the length of a part, and of the queue.
const (
	windowParts = 64
	windowBytes = 4 << 20
	partBytes   = 4 << 20
	maxQueued   = 1 << 20 // number of parts
)

// freshTime is the maximum age of a description that connect uses without a refresh. Several lanes
// can connect with one refresh.
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

// Remote is a segment of another process. It keeps connections open until Close and replaces failed
// ones, also after the target was restarted.
type Remote struct {
	o      Options
	name   string
	ctx    context.Context //nolint:containedctx // ends with the remote; used by its lanes
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // signals changes of the fields below
	segment *Segment
	// described is the time when segment was received.
	described time.Time
	queue     []*part // in order; elements before index next are nil
	next      int
	lanes     []*lane
	idleLanes int // lanes without a request in progress
	closed    bool
}

// Open finds a segment. It returns ErrNotFound if no segment has the name, ErrNotSupported if the
// segment does not use TCP, and errors of the directory.
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

// Segment returns the last received description. It must not be modified.
func (r *Remote) Segment() *Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.segment
}

// refresh reads the description from the directory.
func (r *Remote) refresh(ctx context.Context) (*Segment, error) {
	s, err := r.o.Directory.Find(ctx, r.name)
	switch {
	case err != nil:
		return nil, err
	case s.Protocol != ProtocolTCP:
		return nil, fmt.Errorf("it uses protocol %q, only %s is supported: %w", s.Protocol, ProtocolTCP, errdefs.ErrNotSupported)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segment, r.described = s, time.Now()
	return s, nil
}

// Submit starts a batch of at least one task. It accepts all tasks or none. When ctx ends, the
// batch is canceled. Requests cannot be canceled, so the connections with requests of the batch are
// closed, and writes of other batches on these connections fail too. The order of tasks is
// undefined. Local memory must not be used until the batch is done.
//
// Submit returns ErrInvalid for a task without length or with unregistered memory on either side,
// ErrBusy if too many parts are queued, and ErrClosed.
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
	// This must precede the first send, because finishing a part may call stop.
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

// check returns an error for an invalid task. It refreshes the description if that has no buffer
// for a task.
func (r *Remote) check(ctx context.Context, tasks []Task) error {
	if len(tasks) == 0 {
		return fmt.Errorf("the batch has no tasks: %w", errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrCanceled, context.Cause(ctx))
	}
	s := r.Segment()
	asked := false
	for i, t := range tasks {
		if t.Op != transfer.Read && t.Op != transfer.Write || t.Length == 0 {
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

// cancelBatch cancels a batch whose context has ended. It removes queued parts and closes the
// connections that have other parts in progress.
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

var errBatchCanceled = fmt.Errorf("the connection was closed because a batch was abandoned: %w", errdefs.ErrBroken)

// drop removes the parts of b from the queue and returns them. If b is nil, it removes all parts.
// The caller holds mu.
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

// connect opens a connection to the segment's data port. It first refreshes a description that is
// not fresh: the target may have restarted, and the port may belong to another process. If the
// directory does not respond, it uses the old description.
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

// Close ends all connections. Unfinished tasks fail with ErrClosed. When Close returns, local
// memory is no longer accessed. Close is idempotent.
func (r *Remote) Close() error {
	r.mu.Lock()
	r.closed = true
	r.cancel() // after closed is set, because closed determines the error of tasks
	gone := r.drop(nil)
	for _, l := range r.lanes {
		l.kill(errdefs.ErrClosed)
	}
	r.changed.Broadcast()
	r.mu.Unlock()
	for _, p := range gone {
		p.finish(transfer.StatusFailed, errdefs.ErrClosed)
	}
	r.wg.Wait()
	return nil
}
