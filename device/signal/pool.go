package signal

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

const (
	// MaxWords is the maximum number of words of a pool.
	MaxWords = 1 << 20
	// lineBytes is the distance between words: a cache line, because the CPU writes one word while
	// the GPU polls or writes the next.
	lineBytes = 64
)

// word is a location in pinned memory. One signal owns it at a time.
type word struct {
	at     mem.Extent
	wanted mem.Extent // written by streams: the value for which they have begun to wait
	value  uint64     // value while no signal owns the word
}

// Pool is a set of words that streams of the host program wait for.
type Pool struct {
	dev    device.Device
	limit  int         // maximum number of waiting streams
	region *mem.Region // nil after it was freed; guarded by closer
	words  chan *word  // words that no signal owns
	down   chan struct{}
	closer chan struct{} // holds a token during Close

	mu       sync.Mutex
	closed   bool
	blocking sync.WaitGroup // calls of Block that began before closed was set
	inUse    map[*Signal]struct{}
	streams  map[device.HostStream]*streamWaits
}

// streamWaits is the state of a stream's waits.
type streamWaits struct {
	blockers int // number of running calls of Block; guarded by Pool.mu

	// mu is held while operations are enqueued on the stream, so that last follows all of them.
	mu   sync.Mutex
	last device.Event // done when the stream has passed all waits; nil if it has none
	lost error        // why no event follows the waits, or nil
}

// Open pins a pool of words. The number of words limits the number of signals in use. The pool does
// not own dev, which must outlive it. Open returns ErrNotSupported if dev is not a
// device.StreamAdopter. It blocks while the driver pins memory.
func Open(dev device.Device, words int) (*Pool, error) {
	if words <= 0 || words > MaxWords {
		return nil, fmt.Errorf("open pool of signals: %d words: must be 1 to %d: %w", words, MaxWords, errdefs.ErrInvalid)
	}
	a, ok := dev.(device.StreamAdopter)
	if !ok {
		return nil, fmt.Errorf("open pool of signals: device %d does not adopt streams: %w", dev.Info().Index, errdefs.ErrNotSupported)
	}
	r, err := dev.AllocHost(int64(words) * 2 * lineBytes)
	if err != nil {
		return nil, fmt.Errorf("open pool of signals: %w", err)
	}
	p := &Pool{
		dev: dev, limit: a.WaitLimit(), region: r, words: make(chan *word, words), down: make(chan struct{}), closer: make(chan struct{}, 1),
		inUse: make(map[*Signal]struct{}), streams: make(map[device.HostStream]*streamWaits),
	}
	for i := range words {
		at := mem.Extent{Region: r, Off: int64(i) * 2 * lineBytes, Len: wordBytes}
		wanted := at
		wanted.Off += lineBytes
		p.words <- &word{at: at, wanted: wanted}
	}
	return p, nil
}

// Take returns a signal with this number of steps. A load that is awaited as a whole has one step.
// Take waits until a word is free or ctx ends. It returns ErrClosed once the pool is closed. The
// caller must call Set on the signal.
func (p *Pool) Take(ctx context.Context, steps int) (*Signal, error) {
	if steps <= 0 {
		return nil, fmt.Errorf("take signal of %d steps: %w", steps, errdefs.ErrInvalid)
	}
	select {
	case w := <-p.words:
		return p.take(w, steps)
	default:
	}
	select {
	case w := <-p.words:
		return p.take(w, steps)
	case <-p.down:
		return nil, fmt.Errorf("take signal: %w", errdefs.ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("take signal: %w", context.Cause(ctx))
	}
}

func (p *Pool) take(w *word, steps int) (*Signal, error) {
	s := &Signal{pool: p, word: w, base: w.value, steps: steps}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.words <- w
		return nil, fmt.Errorf("take signal: %w", errdefs.ErrClosed)
	}
	p.inUse[s] = struct{}{}
	return s, nil
}

// recycle returns the word of a finished signal to the pool.
func (p *Pool) recycle(s *Signal) {
	p.mu.Lock()
	delete(p.inUse, s)
	p.mu.Unlock()
	s.word.value = s.base + uint64(s.steps)
	p.words <- s.word
}

// waitsOf returns the state of st for Block, which must call endBlock. It removes the state of
// streams that have passed all their waits.
func (p *Pool) waitsOf(st device.HostStream) (*streamWaits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("pool of signals: %w", errdefs.ErrClosed)
	}
	w := p.streams[st]
	if w == nil {
		for other, w := range p.streams {
			if w.blockers == 0 && w.passed() {
				delete(p.streams, other)
			}
		}
		if len(p.streams) >= p.limit {
			return nil, fmt.Errorf("%d streams wait; one more would block other kernels (CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment raises this limit to 28): %w", len(p.streams), errdefs.ErrBusy)
		}
		w = new(streamWaits)
		p.streams[st] = w
	}
	p.blocking.Add(1)
	w.blockers++
	return w, nil
}

// endBlock records that a call of Block has ended.
func (p *Pool) endBlock(w *streamWaits) {
	p.mu.Lock()
	w.blockers--
	p.mu.Unlock()
	p.blocking.Done()
}

// passed reports whether the stream, which is not used by Block, has passed all its waits. It then
// closes the stream's event.
func (w *streamWaits) passed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil || w.last == nil {
		return w.lost == nil
	}
	done, _ := w.last.Done()
	if done {
		w.last.Close()
		w.last = nil
	}
	return done
}

// Close ends every signal in use with ErrClosed, waits until no stream can access the words, and
// unpins them. If ctx ends first, or the device fails so that the streams' progress is unknown, the
// words stay pinned and Close may be called again. Work of the program that was enqueued before a
// stream's last wait delays Close. A second Close after success returns nil.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.down)
	}
	var left []*Signal
	for s := range p.inUse {
		left = append(left, s)
	}
	p.mu.Unlock()
	for _, s := range left {
		s.Set(fmt.Errorf("pool of signals: %w", errdefs.ErrClosed))
	}
	select {
	case p.closer <- struct{}{}:
		defer func() { <-p.closer }()
	case <-ctx.Done():
		return fmt.Errorf("close pool of signals: %w", context.Cause(ctx))
	}
	if p.region == nil {
		return nil
	}
	if err := p.waitPassed(ctx); err != nil {
		return fmt.Errorf("close pool of signals: %w", err)
	}
	if err := p.dev.Free(p.region); err != nil {
		return fmt.Errorf("close pool of signals: %w", err)
	}
	p.region = nil
	return nil
}

// waitPassed waits until streams have passed all waits. No further waits are enqueued.
func (p *Pool) waitPassed(ctx context.Context) error {
	finished := make(chan struct{})
	go func() { p.blocking.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var errs []error
	for st, w := range p.streams {
		if err := w.waitPassed(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(p.streams, st)
	}
	return errors.Join(errs...)
}

func (w *streamWaits) waitPassed(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		return fmt.Errorf("a stream may still wait: %w", w.lost)
	}
	if w.last == nil {
		return nil
	}
	err := w.last.Wait(ctx)
	if done, _ := w.last.Done(); !done {
		return err // failed work that is done no longer accesses memory
	}
	w.last.Close()
	w.last = nil
	return nil
}
