package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// Engine serves segments of this process and executes batches to and from segments of other
// processes.
type Engine struct {
	o     Options
	id    share.Identity
	host  string
	addr  string
	mover *wire.Mover
	local *rail.Domain // local memory that NICs access; nil without NICs

	// ctx ends when Close begins. Close waits for the goroutines in running.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	closing chan struct{} // semaphore held by Close

	listener net.Listener
	served   served
	inbox    inbox
	counters counters
	carried  carried

	mu       sync.Mutex
	closed   bool
	names    map[string]*Segment
	numbers  map[uint64]*Segment
	segments uint64 // number of the last segment
	peers    map[peerKey]*peer
	remotes  map[*Remote]struct{}
	metaErr  error // error of the last lease renewal, or nil
	refusal  error // last refusal of NICs, or nil

	// batches is a semaphore with one element for each unresolved batch. notifyID and connID are the
	// last assigned numbers.
	batches    chan struct{}
	unresolved sync.WaitGroup
	notifyID   atomic.Uint64
	connID     atomic.Uint64
}

type peerKey struct {
	addr string
	id   share.Identity
}

// Stats are the statistics of an Engine.
type Stats struct {
	Segments, Connections, Lanes, Batches int // current numbers

	Requests  int64 // requests served
	Refused   int64 // requests that were refused
	Malformed int64 // connections that sent malformed data
	// BytesIn is the number of bytes that other engines have written here over sockets. Bytes over
	// other paths cannot be counted.
	BytesIn  int64
	BytesOut int64 // bytes that other engines have read here over sockets
	Retries  int64 // retried parts
	Fences   int64 // connections of this engine that their targets have fenced
	// Refusals counts regions that optional NICs (Options.NICsOptional) have refused, and refusals
	// of all NICs by Open. Refusal is the cause of the last one.
	Refusals int64
	Refusal  error
	// QueuesLeft is the number of queue pairs that failed to connect and that could not be closed.
	// Memory that they could access stays registered.
	QueuesLeft int
	// ConnectRetries is the number of connection retries because the peer's link address was not
	// resolved in time. It includes other users of the NICs.
	ConnectRetries int64

	Paths      []PathStats // bytes and tasks of batches, by path
	Fallbacks  int64       // parts that did not use the expected path
	Reconnects int64       // connections that replaced failed ones

	// Metadata is the error of the last lease renewal, or nil.
	Metadata error
}

type counters struct {
	requests, refused, malformed, in, out, retries, fences, refusals atomic.Int64
}

// Open starts an engine. It returns ErrInvalid for invalid options, and the errors of listening and
// of the NICs.
func Open(o Options) (*Engine, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open transfer engine: %w", err)
	}
	o = o.withDefaults()
	m, err := wire.NewMover(wire.MoverOptions{Device: o.Device, Copy: o.Copy, ChunkBytes: o.ChunkBytes, Chunks: o.Chunks})
	if err != nil {
		return nil, fmt.Errorf("open transfer engine: %w", err)
	}
	local, refused := openLocal(o.NICs)
	if refused != nil {
		if !o.NICsOptional {
			return nil, fmt.Errorf("open transfer engine: %w", errors.Join(refused, m.Close()))
		}
		o.NICs = nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("open transfer engine: %w", errors.Join(err, closeDomain(local), m.Close()))
	}
	e := &Engine{
		o: o, id: share.NewIdentity(), host: thisHost(), addr: o.Advertise, mover: m, local: local, ctx: ctx, cancel: cancel, closing: make(chan struct{}, 1),
		listener: l, names: make(map[string]*Segment), numbers: make(map[uint64]*Segment), peers: make(map[peerKey]*peer),
		remotes: make(map[*Remote]struct{}), batches: make(chan struct{}, o.Batches),
	}
	if e.addr == "" {
		e.addr = l.Addr().String()
	}
	if refused != nil {
		e.recordRefusal(refused)
	}
	e.served.init(&e.o)
	e.inbox.init(o.Notices)
	e.running.Go(e.accept)
	if o.Store != nil {
		e.running.Go(e.renew)
	}
	return e, nil
}

// Address returns the address that other engines connect to.
func (e *Engine) Address() string { return e.addr }

// Identity returns the identity of this engine, which is never reused.
func (e *Engine) Identity() share.Identity { return e.id }

// Stats returns the statistics of the engine.
func (e *Engine) Stats() Stats {
	c := &e.counters
	s := Stats{
		Batches: len(e.batches), Connections: e.served.count(),
		Requests: c.requests.Load(), Refused: c.refused.Load(), Malformed: c.malformed.Load(), BytesIn: c.in.Load(), BytesOut: c.out.Load(),
		Retries: c.retries.Load(), Fences: c.fences.Load(), Refusals: c.refusals.Load(), ConnectRetries: e.o.NICs.ConnectRetries(),
		Paths: e.carried.stats(), Fallbacks: e.carried.fallbacks.Load(), Reconnects: e.carried.reconnects.Load(),
	}
	e.mu.Lock()
	s.Segments, s.Metadata, s.Refusal = len(e.numbers), e.metaErr, e.refusal
	segments := slices.Collect(maps.Values(e.numbers))
	e.mu.Unlock()
	for _, p := range e.allPeers() {
		s.Lanes += p.count()
	}
	if e.local != nil {
		s.QueuesLeft = e.local.Left()
	}
	for _, segment := range segments {
		if d := segment.domain.Load(); d != nil {
			s.QueuesLeft += d.Left()
		}
	}
	return s
}

// Close cancels batches, closes segments and remotes, and waits for them. Finally it fences its
// connections; the error names the engines for which that failed. If ctx ends first, memory
// registered or used with the engine must not be freed, and the caller must retry. After success,
// Close returns nil.
func (e *Engine) Close(ctx context.Context) error {
	select {
	case e.closing <- struct{}{}:
		defer func() { <-e.closing }()
	case <-ctx.Done():
		return fmt.Errorf("close transfer engine: %w", context.Cause(ctx))
	}
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	if err := e.close(ctx); err != nil {
		return fmt.Errorf("close transfer engine: %w", err)
	}
	return nil
}

func (e *Engine) close(ctx context.Context) error {
	e.cancel(fmt.Errorf("the transfer engine: %w", errdefs.ErrClosed))
	if err := await(ctx, &e.unresolved, "batches"); err != nil {
		return err
	}
	if err := e.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	e.served.closeAll()
	for _, r := range e.allRemotes() {
		if err := r.close(ctx); err != nil {
			return err
		}
	}
	if err := await(ctx, &e.running, "connections"); err != nil {
		return err
	}
	for _, s := range e.allSegments() {
		if err := s.Close(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(closeDomain(e.local), e.mover.Close()); err != nil {
		return err
	}
	return e.fencePeers(ctx)
}

// fencePeers fences the unfenced connections of all peers in parallel.
func (e *Engine) fencePeers(ctx context.Context) error {
	all := e.allPeers()
	errs := make([]error, len(all))
	var settling sync.WaitGroup
	for i, p := range all {
		settling.Go(func() { errs[i] = p.fenceAndClose(ctx) })
	}
	settling.Wait()
	return errors.Join(errs...)
}

// await waits for w. It returns ErrBusy if ctx ends first.
func await(ctx context.Context, w *sync.WaitGroup, what string) error {
	done := make(chan struct{})
	go func() {
		w.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
	}
}

func (e *Engine) allRemotes() (all []*Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for r := range e.remotes {
		all = append(all, r)
	}
	return all
}

func (e *Engine) allPeers() []*peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.peers))
}

func (e *Engine) allSegments() (all []*Segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.numbers {
		all = append(all, s)
	}
	return all
}

// start runs f in a goroutine that Close waits for. After Close has begun it does nothing.
func (e *Engine) start(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.running.Go(f)
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
