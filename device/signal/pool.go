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
	// MaxWords is how many words a pool may have.
	MaxWords = 1 << 20
	// lineBytes is how far words are apart: the CPU writes one while the GPU polls or writes its neighbour.
	lineBytes = 64
)

// word is a place in pinned memory, of one signal at a time.
type word struct {
	at    mem.Extent
	come  mem.Extent // a word that streams write: what they have come to wait for
	value uint64     // that it holds while no signal has it
}

// Pool is words on which streams of the host program wait.
type Pool struct {
	dev    device.Device
	limit  int         // of streams that wait
	region *mem.Region // nil once it is freed; of whoever closes
	words  chan *word  // those that no signal has
	down   chan struct{}
	closer chan struct{} // token: one Close at a time

	mu      sync.Mutex
	closed  bool
	holding sync.WaitGroup // calls of Hold that passed closed
	out     map[*Signal]struct{}
	streams map[device.HostStream]*passage
}

// passage is what a stream was told to wait for.
type passage struct {
	holders int // calls of Hold that have it; of the pool's mu

	mu   sync.Mutex   // held while the stream is told, so that last is the last one's
	last device.Event // done when the stream has passed all of it; nil: it was told nothing
	lost error        // why no event tells that
}

// Open pins a pool of so many words: as many signals can be out at a time. The pool does not own dev, which must outlive it.
// ErrNotSupported where dev is no device.StreamAdopter. It blocks while the driver pins memory.
func Open(dev device.Device, words int) (*Pool, error) {
	if words <= 0 || words > MaxWords {
		return nil, fmt.Errorf("open pool of signals: %d words are not 1 to %d: %w", words, MaxWords, errdefs.ErrInvalid)
	}
	a, ok := dev.(device.StreamAdopter)
	if !ok {
		return nil, fmt.Errorf("open pool of signals: device %d adopts no streams: %w", dev.Info().Index, errdefs.ErrNotSupported)
	}
	r, err := dev.AllocHost(int64(words) * 2 * lineBytes)
	if err != nil {
		return nil, fmt.Errorf("open pool of signals: %w", err)
	}
	p := &Pool{
		dev: dev, limit: a.WaitLimit(), region: r, words: make(chan *word, words), down: make(chan struct{}), closer: make(chan struct{}, 1),
		out: make(map[*Signal]struct{}), streams: make(map[device.HostStream]*passage),
	}
	for i := range words {
		at := mem.Extent{Region: r, Off: int64(i) * 2 * lineBytes, Len: wordBytes}
		come := at
		come.Off += lineBytes
		p.words <- &word{at: at, come: come}
	}
	return p, nil
}

// Take returns a signal of so many steps, one for a load that is waited for as a whole. It waits until a word is free, and no
// longer than ctx; ErrClosed once the pool is closed. Whoever takes a signal sets it.
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
	p.out[s] = struct{}{}
	return s, nil
}

// giveBack takes the word of a signal that was set.
func (p *Pool) giveBack(s *Signal) {
	p.mu.Lock()
	delete(p.out, s)
	p.mu.Unlock()
	s.word.value = s.base + uint64(s.steps)
	p.words <- s.word
}

// passage returns what st was told, for Hold, which must call leave. It forgets streams that have passed all.
func (p *Pool) passage(st device.HostStream) (*passage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("pool of signals: %w", errdefs.ErrClosed)
	}
	w := p.streams[st]
	if w == nil {
		for other, w := range p.streams {
			if w.holders == 0 && w.passed() {
				delete(p.streams, other)
			}
		}
		if len(p.streams) >= p.limit {
			return nil, fmt.Errorf("%d streams wait, and with one more kernels would wait with them (CUDA_DEVICE_MAX_CONNECTIONS=32 in the process's environment raises that to 28): %w", len(p.streams), errdefs.ErrBusy)
		}
		w = new(passage)
		p.streams[st] = w
	}
	p.holding.Add(1)
	w.holders++
	return w, nil
}

// leave ends a call of Hold.
func (p *Pool) leave(w *passage) {
	p.mu.Lock()
	w.holders--
	p.mu.Unlock()
	p.holding.Done()
}

// passed reports whether a stream that nobody is telling has passed all that it waited for, and then gives its event back.
func (w *passage) passed() bool {
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

// Close has every signal that is out end with ErrClosed, waits until no stream can look at the words any more, and unpins them.
// If ctx ends first, or the device fails so that nobody knows, the words stay pinned, and Close may be called again. Work of
// the program that was enqueued before a stream's last wait holds it up. A second Close after success returns nil.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.down)
	}
	var left []*Signal
	for s := range p.out {
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
	if err := p.settle(ctx); err != nil {
		return fmt.Errorf("close pool of signals: %w", err)
	}
	if err := p.dev.Free(p.region); err != nil {
		return fmt.Errorf("close pool of signals: %w", err)
	}
	p.region = nil
	return nil
}

// settle waits until streams have passed all waits. Nobody tells them to wait any more.
func (p *Pool) settle(ctx context.Context) error {
	told := make(chan struct{})
	go func() { p.holding.Wait(); close(told) }()
	select {
	case <-told:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var errs []error
	for st, w := range p.streams {
		if err := w.settle(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(p.streams, st)
	}
	return errors.Join(errs...)
}

func (w *passage) settle(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		return fmt.Errorf("nobody knows when a stream has passed its wait: %w", w.lost)
	}
	if w.last == nil {
		return nil
	}
	err := w.last.Wait(ctx)
	if done, _ := w.last.Done(); !done {
		return err // work that failed and is done touches nothing any more
	}
	w.last.Close()
	w.last = nil
	return nil
}
