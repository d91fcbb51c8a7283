package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// How long until a stream that broke and did not close is closed again: at first, and at most, as it doubles.
const (
	firstClosePause = 10 * time.Millisecond
	maxClosePause   = time.Second
)

// run closes the stream, again and again if need be: until then it holds memory and queues of the device.
func (r *retired) run(ctx context.Context, again func()) {
	defer close(r.done)
	for pause := firstClosePause; ; pause = min(2*pause, maxClosePause) {
		if r.err = r.st.Close(ctx); r.err == nil || ctx.Err() != nil {
			return
		}
		again()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// join waits until the stream is closed. When ctx ends it has the goroutine end too, which the next join waits for.
func (r *retired) join(ctx context.Context, end func()) error {
	select {
	case <-r.done:
	case <-ctx.Done():
		end()
		return context.Cause(ctx)
	}
	if r.err != nil {
		_, r.err = closeStream(ctx, r.st)
	}
	return r.err
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

// submit hands b to the stream, to come after recorded work of the device. A stream that refuses because it broke earlier has
// not touched the batch: it is replaced and the batch offered once more, and the new stream waits for that work too.
func (l *lane) submit(ctx context.Context, b *mem.Batch, after ...stream.Recorded) (*stream.Ticket, error) {
	for try := 0; ; try++ {
		st, err := l.get(ctx)
		if err != nil {
			return nil, err
		}
		var t *stream.Ticket
		if err = precede(ctx, st, after); err == nil {
			t, err = st.Submit(ctx, b)
		}
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

// precede makes what is submitted to st later wait: on the device where st can, else here.
func precede(ctx context.Context, st stream.Stream, after []stream.Recorded) error {
	es, able := st.(stream.EventStream)
	for k, d := range after {
		var err error
		if able {
			err = d.Precede(ctx, es)
		} else {
			select {
			case <-d.Done():
				err = d.Err()
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if err != nil {
			return fmt.Errorf("come after recorded work %d of %d: %w", k+1, len(after), err)
		}
	}
	return nil
}

// split takes out of after what the stream waits for on the device. The rest is waited for by the host, before slots are taken.
func (l *lane) split(ctx context.Context, after []mem.Dependency) (onHost []mem.Dependency, onDevice []stream.Recorded) {
	for k, d := range after {
		r, ok := d.(stream.Recorded)
		if ok && onDevice == nil {
			st, _ := l.get(ctx) // what fails here does so again when there is something to copy
			if _, ok = st.(stream.EventStream); !ok {
				return after, nil
			}
			onHost = slices.Clone(after[:k])
		}
		switch {
		case ok:
			onDevice = append(onDevice, r)
		case onDevice != nil:
			onHost = append(onHost, d)
		}
	}
	if onDevice == nil {
		return after, nil
	}
	return onHost, onDevice
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

// idle says whether there is a stream, and no task waits for a batch of it.
func (l *lane) idle() bool {
	st, _ := l.current()
	return st != nil && l.submitted.Load() == l.resolved.Load()
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
	go r.run(l.ctx, func() { l.s.count.retries.Add(1) })
}

func (r *retired) closed() bool {
	select {
	case <-r.done:
		return r.err == nil
	default:
		return false
	}
}

// close closes the current stream and waits for the retired ones. told is what streams said that are closed all the same. After err
// something is still open, and it may be called again. No submit runs any more.
func (l *lane) close(ctx context.Context) (told, err error) {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	select {
	case <-l.watching:
	case <-ctx.Done():
		return nil, fmt.Errorf("close %s stream: its watcher has not ended: %w", l.name, context.Cause(ctx))
	}
	l.mu.Lock()
	cur, old := l.cur, l.retired
	l.mu.Unlock()
	var errs []error
	if cur != nil {
		said, err := closeStream(ctx, cur)
		if err != nil {
			errs = append(errs, fmt.Errorf("close %s stream: %w", l.name, err))
		} else {
			l.mu.Lock()
			l.cur = nil
			l.mu.Unlock()
		}
		if told = said; told != nil {
			told = fmt.Errorf("close %s stream: %w", l.name, told)
		}
	}
	for _, r := range old {
		if err := r.join(ctx, l.end); err != nil {
			errs = append(errs, fmt.Errorf("close %s stream that broke: %w", l.name, err))
		}
	}
	if len(errs) == 0 {
		l.end()
	}
	return told, errors.Join(errs...)
}

// closeStream closes st. What failed may say so when it is closed, and be closed all the same: that is told, and only the second
// answer is err.
func closeStream(ctx context.Context, st stream.Stream) (told, err error) {
	if told = st.Close(ctx); told == nil {
		return nil, nil
	}
	if ctx.Err() != nil || st.Close(ctx) != nil {
		return nil, told
	}
	return told, nil
}
