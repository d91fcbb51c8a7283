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

// DefaultDepth is the default of Options.Depth.
const DefaultDepth = 4

// Options are the options of a Sender.
type Options struct {
	// Layers lists the planes of each layer: local memory and offsets in the receiver's segment.
	Layers [][]transfer.PagePlane
	// Groups is the page group of each layer, numbered from 0. Empty: all layers belong to group 0.
	Groups []int
	// Depth is the maximum number of layers of a request in progress. Default DefaultDepth.
	Depth int
	// Timeout is the maximum duration of a layer, including the wait for its dependencies. Default:
	// the engine's timeout.
	Timeout time.Duration
}

// Sender sends requests to one segment. It is safe for concurrent use.
type Sender struct {
	e      *transfer.Engine
	to     *transfer.Remote
	o      Options
	groups int

	requests atomic.Int64 // number of unfinished requests
}

// NewSender returns a sender to a segment that e has opened. It needs no Close. It returns
// ErrInvalid for options out of range.
func NewSender(e *transfer.Engine, to *transfer.Remote, o Options) (*Sender, error) {
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	switch {
	case len(o.Layers) == 0 || len(o.Layers) > maxLayers:
		return nil, fmt.Errorf("hand over %d layers: must be 1 to %d: %w", len(o.Layers), maxLayers, errdefs.ErrInvalid)
	case o.Depth < 0 || o.Timeout < 0:
		return nil, fmt.Errorf("hand over with %d concurrent layers and %v for each: %w", o.Depth, o.Timeout, errdefs.ErrInvalid)
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

// group returns the page group of layer k.
func (s *Sender) group(k int) int {
	if len(s.o.Groups) == 0 {
		return 0
	}
	return s.o.Groups[k]
}

// Requests returns the number of unfinished requests. The segment must stay open while there are
// any.
func (s *Sender) Requests() int { return int(s.requests.Load()) }

// Request is the KV cache of one request. Several goroutines may send its layers.
type Request struct {
	s      *Sender
	id     []byte
	number uint64 // distinguishes attempts with the same identifier
	pairs  [][]transfer.PagePair
	window chan struct{} // semaphore: one element for each layer in progress
	// ctx is canceled by the first failure, with the failure as cause. This cancels the layers in
	// progress.
	ctx  context.Context
	fail context.CancelCauseFunc

	mu        sync.Mutex // never held during a wait
	submitted []bool     // by layer
	ended     bool
	waiting   sync.WaitGroup // layers in progress
}

// Begin begins a request. The receiver's events contain id. pairs lists the local and remote pages
// of each page group. Some groups may be empty, but not all. pairs must not change until Finish has
// returned. Begin returns ErrInvalid for invalid arguments.
func (s *Sender) Begin(id []byte, pairs ...[]transfer.PagePair) (*Request, error) {
	pages := 0
	for _, p := range pairs {
		pages += len(p)
	}
	if len(id) > MaxIDBytes || pages == 0 || len(pairs) != s.groups {
		return nil, fmt.Errorf("hand over %d pages of %d page groups, expected %d, of a request with an identifier of %d bytes, at most %d: %w",
			pages, len(pairs), s.groups, len(id), MaxIDBytes, errdefs.ErrInvalid)
	}
	r := &Request{
		s: s, id: slices.Clone(id), number: rand.Uint64(), pairs: slices.Clone(pairs), window: make(chan struct{}, s.o.Depth), submitted: make([]bool, len(s.o.Layers)),
	}
	r.ctx, r.fail = context.WithCancelCause(context.Background())
	s.requests.Add(1)
	return r, nil
}

// Layer sends layer k. It must be called once for each layer. The transfer starts when all
// dependencies in after have resolved; one may be the ticket of the stream that computes the layer.
// Layer blocks while Depth layers are in progress, until ctx ends. ctx has no other effect. After a
// failure of the request, Layer returns the failure. The pages of the layer must not change until
// Finish has returned.
func (r *Request) Layer(ctx context.Context, k int, after ...mem.Dependency) error {
	if k < 0 || k >= len(r.submitted) {
		return fmt.Errorf("hand over layer %d of %d: %w", k, len(r.submitted), errdefs.ErrInvalid)
	}
	select {
	case r.window <- struct{}{}:
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
		r.undoTake(k, err)
	}
	<-r.window
	return fmt.Errorf("hand over layer %d: %w", k, err)
}

// take marks layer k as submitted. Finish waits for submitted layers.
func (r *Request) take(k int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case r.ended:
		return fmt.Errorf("the request has ended: %w", errdefs.ErrClosed)
	case r.submitted[k]:
		return fmt.Errorf("already handed over: %w", errdefs.ErrExists)
	}
	r.submitted[k] = true
	r.waiting.Add(1)
	return nil
}

// undoTake undoes take after a failed submit. If Finish was called meanwhile, the request fails.
func (r *Request) undoTake(k int, why error) {
	r.mu.Lock()
	r.submitted[k] = false
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
		<-b.Done() // batches have a time limit
		stop()
		if err := b.Err(); err != nil {
			r.fail(fmt.Errorf("layer %d: %w", k, err))
		}
		<-r.window
	}()
	return nil
}

func (r *Request) message(w kind, k int) []byte {
	return message{w, k, len(r.submitted), r.number, r.id}.encode()
}

// Finish waits for all layers. It returns nil if the receiver has received every layer. Otherwise,
// and if ctx ends, the request fails: Finish cancels layers in progress and notifies the receiver
// if possible. When it returns, the request's local pages are no longer accessed.
func (r *Request) Finish(ctx context.Context) error {
	r.mu.Lock()
	finished := r.ended
	r.ended = true
	missing := 0
	for _, submitted := range r.submitted {
		if !submitted {
			missing++
		}
	}
	r.mu.Unlock()
	if finished {
		return fmt.Errorf("finish a request: already ended: %w", errdefs.ErrClosed)
	}
	defer r.s.requests.Add(-1)
	if missing > 0 {
		r.fail(fmt.Errorf("%d of %d layers were not handed over: %w", missing, len(r.submitted), errdefs.ErrCanceled))
	}
	stop := context.AfterFunc(ctx, func() { r.fail(fmt.Errorf("the request was abandoned: %w", context.Cause(ctx))) })
	r.waiting.Wait() // batches have a time limit
	stop()
	if r.ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("hand over request: %w", errors.Join(context.Cause(r.ctx), r.notifyFailure()))
}

// notifyTimeout is the maximum duration of notifyFailure.
const notifyTimeout = 5 * time.Second

// notifyFailure notifies the receiver that the request failed.
func (r *Request) notifyFailure() error {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	nothing := mem.Extent{Region: r.s.o.Layers[0][0].Region}
	b, err := r.s.e.Submit(ctx, []transfer.Task{{Op: transfer.Write, Segment: r.s.to, Local: nothing, Offset: r.s.o.Layers[0][0].RemoteBase}},
		transfer.SubmitOptions{Timeout: notifyTimeout, Notify: r.message(failed, 0)})
	if err == nil {
		<-b.Done() // batches have a time limit
		err = b.Err()
	}
	if err != nil {
		return fmt.Errorf("notify the receiver: %w", err)
	}
	return nil
}
