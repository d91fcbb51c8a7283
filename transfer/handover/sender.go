package handover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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
	// Groups says of which page group each layer is, of a model with several; they are numbered from 0. Empty: all layers are of one.
	Groups []int
	// Depth is how many layers of a request are under way at a time. Default DefaultDepth.
	Depth int
	// Timeout is for how long a layer may take from when it is given, with the wait for what it comes after. Default: that of the engine.
	Timeout time.Duration
}

// Sender hands requests over to one segment. Safe for concurrent use.
type Sender struct {
	e      *transfer.Engine
	to     *transfer.Remote
	o      Options
	groups int

	requests atomic.Int64 // begun and not finished
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
	if len(o.Groups) > 0 && (len(o.Groups) != len(o.Layers) || slices.Min(o.Groups) < 0 || slices.Max(o.Groups) >= len(o.Layers)) {
		return nil, fmt.Errorf("hand over %d layers of page groups %v: %w", len(o.Layers), o.Groups, errdefs.ErrInvalid)
	}
	s := &Sender{e: e, to: to, o: o}
	for k, planes := range o.Layers {
		if len(planes) == 0 || planes[0].Region == nil {
			return nil, fmt.Errorf("hand over layer %d: it has no planes: %w", k, errdefs.ErrInvalid)
		}
		s.groups = max(s.groups, s.group(k)+1)
	}
	return s, nil
}

// group returns of which page group layer k is.
func (s *Sender) group(k int) int {
	if len(s.o.Groups) == 0 {
		return 0
	}
	return s.o.Groups[k]
}

// Requests returns how many requests have begun and are not finished: what they are handed over to must stay open.
func (s *Sender) Requests() int { return int(s.requests.Load()) }

// Request is one request's KV on its way. Its layers may be handed over by several goroutines.
type Request struct {
	s      *Sender
	id     []byte
	number uint64 // of all requests that have this identifier
	pairs  [][]transfer.PagePair
	room   chan struct{} // a token of each layer that is under way
	// ctx ends with the first failure, which is its cause, and with it what is under way.
	ctx  context.Context
	fail context.CancelCauseFunc

	mu      sync.Mutex // held for no wait
	given   []bool     // by layer
	ended   bool
	waiting sync.WaitGroup // layers that are under way
}

// Begin begins a request, whose identifier the receiver hears. pairs has its pages, here and there, of each page group; a group may have none, all
// of them some. They must not change until Finish has returned. ErrInvalid.
func (s *Sender) Begin(id []byte, pairs ...[]transfer.PagePair) (*Request, error) {
	pages := 0
	for _, p := range pairs {
		pages += len(p)
	}
	if len(id) > MaxIDBytes || pages == 0 || len(pairs) != s.groups {
		return nil, fmt.Errorf("hand over %d pages of %d page groups, of %d, of a request whose identifier has %d bytes, of at most %d: %w",
			pages, len(pairs), s.groups, len(id), MaxIDBytes, errdefs.ErrInvalid)
	}
	r := &Request{
		s: s, id: slices.Clone(id), number: rand.Uint64(), pairs: slices.Clone(pairs), room: make(chan struct{}, s.o.Depth), given: make([]bool, len(s.o.Layers)),
	}
	r.ctx, r.fail = context.WithCancelCause(context.Background())
	s.requests.Add(1)
	return r, nil
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
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-ctx.Done():
		return fmt.Errorf("wait to hand over layer %d: %w", k, context.Cause(ctx))
	}
	err := r.take(k)
	if err == nil {
		if err = r.submit(ctx, k, after); err == nil {
			return nil
		}
		r.giveBack(k, err)
	}
	<-r.room
	return fmt.Errorf("hand over layer %d: %w", k, err)
}

// take counts a layer as handed over, which Finish waits for.
func (r *Request) take(k int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case r.ended:
		return fmt.Errorf("the request has ended: %w", errdefs.ErrClosed)
	case r.given[k]:
		return fmt.Errorf("it was before: %w", errdefs.ErrExists)
	}
	r.given[k] = true
	r.waiting.Add(1)
	return nil
}

// giveBack undoes take: the layer is not under way. Finish may have counted on it.
func (r *Request) giveBack(k int, why error) {
	r.mu.Lock()
	r.given[k] = false
	ended := r.ended
	r.mu.Unlock()
	if ended {
		r.fail(fmt.Errorf("layer %d: %w", k, why))
	}
	r.waiting.Done()
}

func (r *Request) submit(ctx context.Context, k int, after []mem.Dependency) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })()
	b, err := r.s.e.Submit(ctx, []transfer.Task{{
		Op: transfer.Write, Segment: r.s.to, Pages: &transfer.Pages{Planes: r.s.o.Layers[k], Pairs: r.pairs[r.s.group(k)]},
	}}, transfer.SubmitOptions{After: after, Timeout: r.s.o.Timeout, Notify: r.message(arrived, k)})
	if err != nil {
		return err
	}
	go func() {
		defer r.waiting.Done()
		stop := context.AfterFunc(r.ctx, b.Cancel)
		<-b.Done() // within its time
		stop()
		if err := b.Err(); err != nil {
			r.fail(fmt.Errorf("layer %d: %w", k, err))
		}
		<-r.room
	}()
	return nil
}

func (r *Request) message(w what, k int) []byte {
	return message{w, k, len(r.given), r.number, r.id}.encode()
}

// Finish waits for all layers, and returns nil if the receiver has every one. Layers that were not handed over, a layer that failed and a
// ctx that ends fail the request: what is under way is given up, and the receiver is told, if it can be. When Finish has returned nothing
// touches the request's pages here any more.
func (r *Request) Finish(ctx context.Context) error {
	r.mu.Lock()
	again := r.ended
	r.ended = true
	missing := 0
	for _, given := range r.given {
		if !given {
			missing++
		}
	}
	r.mu.Unlock()
	if again {
		return fmt.Errorf("finish a request: it has ended before: %w", errdefs.ErrClosed)
	}
	defer r.s.requests.Add(-1)
	if missing > 0 {
		r.fail(fmt.Errorf("%d of %d layers were not handed over: %w", missing, len(r.given), errdefs.ErrCanceled))
	}
	stop := context.AfterFunc(ctx, func() { r.fail(fmt.Errorf("the request was given up: %w", context.Cause(ctx))) })
	r.waiting.Wait() // batches end within their times
	stop()
	if r.ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("hand over request: %w", errors.Join(context.Cause(r.ctx), r.tell()))
}

// tellTime is how long the receiver may take to hear of a failure.
const tellTime = 5 * time.Second

// tell has the receiver hear that the request failed.
func (r *Request) tell() error {
	ctx, cancel := context.WithTimeout(context.Background(), tellTime)
	defer cancel()
	nothing := mem.Extent{Region: r.s.o.Layers[0][0].Region}
	b, err := r.s.e.Submit(ctx, []transfer.Task{{Op: transfer.Write, Segment: r.s.to, Local: nothing, Offset: r.s.o.Layers[0][0].RemoteBase}},
		transfer.SubmitOptions{Timeout: tellTime, Notify: r.message(failed, 0)})
	if err == nil {
		<-b.Done() // within its time
		err = b.Err()
	}
	if err != nil {
		return fmt.Errorf("the receiver was not told: %w", err)
	}
	return nil
}
