package handover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer"
)

// DefaultDepth is that of Options.
const DefaultDepth = 4

// Options say what is handed over.
type Options struct {
	// Layers has the planes of each layer, here and in the receiver's segment.
	Layers [][]transfer.PagePlane
	// Depth is how many layers of a request are under way at a time. Default DefaultDepth.
	Depth int
	// Timeout is for how long a layer may take from when it is given, with the wait for what it comes after. Default: that of the engine.
	Timeout time.Duration
}

// Sender hands requests over to one segment. Safe for concurrent use.
type Sender struct {
	e  *transfer.Engine
	to *transfer.Remote
	o  Options
}

// NewSender returns a sender to a segment that e has opened. It has nothing to close. ErrInvalid.
func NewSender(e *transfer.Engine, to *transfer.Remote, o Options) (*Sender, error) {
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	switch {
	case len(o.Layers) == 0 || len(o.Layers) > maxLayers:
		return nil, fmt.Errorf("hand over %d layers: it is 1 to %d: %w", len(o.Layers), maxLayers, errdefs.ErrInvalid)
	case o.Depth < 0 || o.Timeout < 0:
		return nil, fmt.Errorf("hand over with %d layers under way and %v for each: %w", o.Depth, o.Timeout, errdefs.ErrInvalid)
	}
	for k, planes := range o.Layers {
		if len(planes) == 0 || planes[0].Region == nil {
			return nil, fmt.Errorf("hand over layer %d: it has no planes: %w", k, errdefs.ErrInvalid)
		}
	}
	return &Sender{e: e, to: to, o: o}, nil
}

// Request is one request's KV on its way. Its layers may be handed over by several goroutines.
type Request struct {
	s     *Sender
	id    []byte
	pairs []transfer.PagePair
	room  chan struct{} // a token of each layer that is under way

	mu      sync.Mutex
	given   []*transfer.Batch // by layer; nil: not yet
	failure error             // the first
	ended   bool
	waiting sync.WaitGroup
	failed  chan struct{} // closed with the failure
}

// Begin begins a request, whose identifier the receiver hears. pairs has its pages, here and there; it must not change until Finish has
// returned. ErrInvalid.
func (s *Sender) Begin(id []byte, pairs []transfer.PagePair) (*Request, error) {
	if len(id) > MaxIDBytes || len(pairs) == 0 {
		return nil, fmt.Errorf("hand over %d pages of a request whose identifier has %d bytes, of at most %d: %w", len(pairs), len(id), MaxIDBytes, errdefs.ErrInvalid)
	}
	return &Request{
		s: s, id: id, pairs: pairs, room: make(chan struct{}, s.o.Depth), given: make([]*transfer.Batch, len(s.o.Layers)), failed: make(chan struct{}),
	}, nil
}

// Layer hands layer k over, once, when what it comes after has resolved: a ticket of a stream behind the layer's computation. It waits
// until fewer than Depth layers are under way, or ctx ends, which gives only the waiting up. After a failure it returns that. The pages of
// the layer must not be written to before Finish has returned.
func (r *Request) Layer(ctx context.Context, k int, after ...mem.Dependency) error {
	if k < 0 || k >= len(r.given) {
		return fmt.Errorf("hand over layer %d of %d: %w", k, len(r.given), errdefs.ErrInvalid)
	}
	select {
	case r.room <- struct{}{}:
	case <-r.failed:
		return r.why()
	case <-ctx.Done():
		return fmt.Errorf("wait to hand over layer %d: %w", k, context.Cause(ctx))
	}
	if err := r.submit(ctx, k, after); err != nil {
		<-r.room
		return fmt.Errorf("hand over layer %d: %w", k, err)
	}
	return nil
}

func (r *Request) submit(ctx context.Context, k int, after []mem.Dependency) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.failure != nil:
		return r.failure
	case r.ended:
		return fmt.Errorf("the request has ended: %w", errdefs.ErrClosed)
	case r.given[k] != nil:
		return fmt.Errorf("it was before: %w", errdefs.ErrExists)
	}
	b, err := r.s.e.Submit(ctx, []transfer.Task{{
		Op: transfer.Write, Segment: r.s.to, Pages: &transfer.Pages{Planes: r.s.o.Layers[k], Pairs: r.pairs},
	}}, transfer.SubmitOptions{After: after, Timeout: r.s.o.Timeout, Notify: message{arrived, k, len(r.given), r.id}.encode()})
	if err != nil {
		return err
	}
	r.given[k] = b
	r.waiting.Go(func() {
		<-b.Done() // within its time
		if err := b.Err(); err != nil {
			r.fail(fmt.Errorf("layer %d: %w", k, err))
		}
		<-r.room
	})
	return nil
}

// fail notes the first failure, and ends what is under way.
func (r *Request) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return
	}
	r.failure = err
	close(r.failed)
	for _, b := range r.given {
		if b != nil {
			b.Cancel()
		}
	}
}

func (r *Request) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// Finish waits for all layers, and returns nil if the receiver has every one. Layers that were not handed over, a layer that failed and a
// ctx that ends fail the request: what is under way is given up, and the receiver is told, if it can be. When Finish has returned nothing
// touches the request's pages here any more.
func (r *Request) Finish(ctx context.Context) error {
	r.mu.Lock()
	again := r.ended
	r.ended = true
	missing := 0
	for _, b := range r.given {
		if b == nil {
			missing++
		}
	}
	r.mu.Unlock()
	if again {
		return fmt.Errorf("finish a request: it has ended before: %w", errdefs.ErrClosed)
	}
	if missing > 0 {
		r.fail(fmt.Errorf("%d of %d layers were not handed over: %w", missing, len(r.given), errdefs.ErrCanceled))
	}
	stop := context.AfterFunc(ctx, func() { r.fail(fmt.Errorf("the request was given up: %w", context.Cause(ctx))) })
	r.waiting.Wait() // batches end within their times
	stop()
	err := r.why()
	if err == nil {
		return nil
	}
	return fmt.Errorf("hand over request: %w", errors.Join(err, r.tell()))
}

// tellTime is how long the receiver may take to hear of a failure.
const tellTime = 5 * time.Second

// tell has the receiver hear that the request failed.
func (r *Request) tell() error {
	nothing := mem.Extent{Region: r.s.o.Layers[0][0].Region}
	b, err := r.s.e.Submit(context.Background(), []transfer.Task{{Op: transfer.Write, Segment: r.s.to, Local: nothing, Offset: r.s.o.Layers[0][0].RemoteBase}},
		transfer.SubmitOptions{Timeout: tellTime, Notify: message{failed, 0, len(r.given), r.id}.encode()})
	if err == nil {
		<-b.Done() // within its time
		err = b.Err()
	}
	if err != nil {
		return fmt.Errorf("the receiver was not told: %w", err)
	}
	return nil
}
