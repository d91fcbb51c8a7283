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
	// Directory finds the segment. Default: that of P2PHANDSHAKE.
	Directory Directory
	// Memory has the local memory of tasks. Required.
	Memory *Regions
	// Lanes is the number of connections that carry parts concurrently. Default 4.
	Lanes int
	// StallTime is the time without a byte after which a request fails. Default 30 s.
	StallTime time.Duration
}

// Limits of the requests in progress on one connection, and the length of a part.
const (
	windowParts = 64
	windowBytes = 4 << 20
	partBytes   = 4 << 20
	maxQueued   = 1 << 20 // number of parts
)

// freshTime is the age up to which connect uses a description without a refresh. It lets several
// lanes connect with one refresh.
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

// Remote is a segment of another process. It keeps its connections until Close and replaces failed
// ones, also after a restart of the target.
type Remote struct {
	o      Options
	name   string
	ctx    context.Context //nolint:containedctx // ends with the remote; used by its lanes
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // signals changes of the fields below
	segment *Segment
	// described is the time at which segment was received.
	described time.Time
	queue     []*part // in order; elements before next are nil
	next      int
	lanes     []*lane
	idleLanes int // lanes without a request in progress
	closed    bool
}

// Open finds a segment. It returns ErrNotFound if there is none of that name, ErrNotSupported if it
// is not reached by TCP, or an error of the directory.
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

// Segment returns the last description. It must not be modified.
func (r *Remote) Segment() *Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.segment
}

// refresh gets a new description from the directory.
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

// Submit begins a batch of at least one task. It accepts all tasks or none. ctx limits the whole
// batch: when it ends, connections with requests of the batch are closed, since requests cannot be
// called back, and writes of other batches on these connections fail too. Tasks take effect in any
// order. Local memory must not be used until the batch is done.
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
	// Before the first part is sent: a final part calls stop.
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

// check returns an error for an invalid task. It refreshes the description if that does not contain
// a buffer.
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

// cancelBatch ends a batch whose context has ended. It removes queued parts and closes the
// connections that carry others.
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

// drop removes the parts of b, or all parts if b is nil, from the queue. The caller holds mu.
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

// connect opens a connection to the segment's data port. It refreshes an old description first,
// since the target may have restarted and its port belong to another process. If the directory does
// not answer, it uses the old description.
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

// Close ends every connection. Tasks that are not final fail with ErrClosed. When Close returns, no
// local memory is touched. Close is idempotent.
func (r *Remote) Close() error {
	r.mu.Lock()
	r.closed = true
	r.cancel() // after closed is set, which determines the error of tasks
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
