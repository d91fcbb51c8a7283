package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// lane is one direction's stream, opened when first needed and replaced when it broke.
type lane struct {
	s    *Store
	name string
	open func() (stream.Stream, error)
	// turn is a lock that is waited for with a context. It is held while the driver opens a stream, since two tasks that
	// find none must open one, not two.
	turn chan struct{}
	// ctx ends when close gave up on retired streams.
	ctx context.Context
	end context.CancelFunc

	submitted, resolved atomic.Int64  // tickets
	watching            chan struct{} // closed when the watcher has ended
	quit                chan struct{} // closed to end it

	mu      sync.Mutex
	cur     stream.Stream
	broken  error // why there is no current stream; nil before the first
	retired []*retired
	closed  bool
}

// retired is a stream that broke and is being closed by a goroutine of its own, because that may take as long as the
// hardware does. done is closed when the goroutine has ended; err says whether the stream is closed.
type retired struct {
	st   stream.Stream
	done chan struct{}
	err  error
}

func (l *lane) init(name string, open func() (stream.Stream, error), s *Store) {
	l.name, l.open, l.s = name, open, s
	l.turn = make(chan struct{}, 1)
	l.ctx, l.end = context.WithCancel(context.Background())
	l.quit, l.watching = make(chan struct{}), make(chan struct{})
	go l.watch()
}

// probeEvery is how long tickets may stand still before the stream is asked whether it still works.
const probeEvery = time.Second

// watch finds streams that broke while nobody submits. A ticket of which the device cannot say that it has stopped stays
// unresolved until its stream is closed, so somebody has to find that out: an empty batch that a broken stream refuses.
func (l *lane) watch() {
	defer close(l.watching)
	tick := l.s.clock.NewTicker(probeEvery)
	defer tick.Stop()
	seen := int64(-1)
	for {
		select {
		case <-tick.Chan():
		case <-l.quit:
			return
		}
		done := l.resolved.Load()
		if done == l.submitted.Load() || done != seen {
			seen = done
			continue
		}
		ctx, cancel := context.WithTimeout(l.ctx, probeEvery)
		l.mu.Lock()
		st := l.cur
		l.mu.Unlock()
		if st != nil {
			if _, err := st.Submit(ctx, &mem.Batch{}); isBroken(err) {
				l.retire(st, err)
			}
		}
		cancel()
	}
}

// isBroken says whether a Submit's error means that the stream takes no more batches.
func isBroken(err error) bool {
	return errors.Is(err, errdefs.ErrBroken) || errors.Is(err, errdefs.ErrClosed)
}

// submit hands b to the stream. A stream that refuses because it broke earlier has not touched the batch: it is replaced
// and the batch offered once more.
func (l *lane) submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	for try := 0; ; try++ {
		st, err := l.get(ctx)
		if err != nil {
			return nil, err
		}
		t, err := st.Submit(ctx, b)
		if err == nil {
			l.submitted.Add(1)
			return t, nil
		}
		broke := isBroken(err)
		if broke {
			l.retire(st, err)
		}
		if !broke || try > 0 {
			return nil, fmt.Errorf("submit to %s stream: %w", l.name, err)
		}
		l.s.count.retries.Add(1)
	}
}

// get returns the current stream, opening one if there is none.
func (l *lane) get(ctx context.Context) (stream.Stream, error) {
	st, _ := l.current()
	if st != nil {
		return st, nil
	}
	st, why, err := l.reopen(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s stream: %w", l.name, err)
	}
	if why != nil {
		l.s.count.reopened.Add(1)
		l.s.cfg.Hooks.streamReopened(l.name, why)
	}
	return st, nil
}

func (l *lane) current() (st stream.Stream, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur, l.broken
}

// reopen opens a stream, unless another has done so meanwhile, and returns what broke the one that it replaces.
func (l *lane) reopen(ctx context.Context) (st stream.Stream, why, err error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if st, why = l.current(); st != nil {
		return st, nil, nil
	}
	if st, err = l.open(); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	l.cur = st
	l.mu.Unlock()
	return st, why, nil
}

// retire takes st out of use if it still is the current stream, and has it closed.
func (l *lane) retire(st stream.Stream, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != st {
		return
	}
	l.cur, l.broken = nil, why
	r := &retired{st: st, done: make(chan struct{})}
	// Streams that are closed by now need no place in the list.
	kept := l.retired[:0]
	for _, o := range l.retired {
		if !o.closed() {
			kept = append(kept, o)
		}
	}
	l.retired = append(kept, r)
	go func() {
		defer close(r.done)
		r.err = r.st.Close(l.ctx)
	}()
}

func (r *retired) closed() bool {
	select {
	case <-r.done:
		return r.err == nil
	default:
		return false
	}
}

// close closes the current stream and waits for the retired ones. If ctx ends first it may be called again. No submit
// runs any more.
func (l *lane) close(ctx context.Context) error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	<-l.watching
	l.mu.Lock()
	cur, old := l.cur, l.retired
	l.mu.Unlock()
	var errs []error
	if cur != nil {
		if err := cur.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close %s stream: %w", l.name, err))
		}
	}
	for _, r := range old {
		select {
		case <-r.done:
		case <-ctx.Done():
			l.end() // the goroutine gives up, and is joined
			<-r.done
		}
		if r.err != nil {
			r.err = r.st.Close(ctx)
		}
		if r.err != nil {
			errs = append(errs, fmt.Errorf("close %s stream that broke: %w", l.name, r.err))
		}
	}
	if len(errs) == 0 {
		l.end()
	}
	return errors.Join(errs...)
}
