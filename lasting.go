//go:build !nonic

package kvlane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// lasting is a stream that opens another one where the current one has broken, and so may fail batches and yet go on. A
// NIC in software moves bytes by it: its queue pairs can be made anew, and then what is below has to work again. Safe for
// concurrent use.
type lasting struct {
	open func() (stream.Stream, error)
	// quit ends the watcher, and whatever it waits for; watching is closed when it has ended.
	quit     context.CancelFunc
	watching chan struct{}

	// turn is a lock that is waited for with a context. It is held while streams are opened and closed: nothing may reach the
	// next one before the last is at rest, or batches would no longer be in order.
	turn chan struct{}

	mu     sync.Mutex
	cur    stream.Stream // nil: none is open; written with the turn
	closed bool
}

var _ stream.Stream = (*lasting)(nil)

func newLasting(open func() (stream.Stream, error)) *lasting {
	ctx, quit := context.WithCancel(context.Background())
	l := &lasting{open: open, quit: quit, watching: make(chan struct{}), turn: make(chan struct{}, 1)}
	go l.watch(ctx)
	return l
}

// probeEvery is how long a stream may be broken before it is closed, where nobody submits.
const probeEvery = 250 * time.Millisecond

// watch closes streams that broke while nobody submits. A ticket of which the device cannot say that it has stopped stays
// unresolved until its stream is closed, and whoever waits for it submits nothing.
func (l *lasting) watch(ctx context.Context) {
	defer close(l.watching)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.probe(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// probe asks the current stream whether it still works, by an empty batch.
func (l *lasting) probe(ctx context.Context) {
	s, err := l.now()
	if s == nil || err != nil {
		return
	}
	brief, cancel := context.WithTimeout(ctx, probeEvery)
	defer cancel()
	if _, err := s.Submit(brief, &mem.Batch{}); isBroken(err) {
		_ = l.retire(ctx, s) // else it stays the current stream, and whoever is next tries again and tells
	}
}

// isBroken reports whether a Submit's error means that the stream takes no more batches. It may have been closed since, for
// somebody else found it broken.
func isBroken(err error) bool {
	return errors.Is(err, errdefs.ErrBroken) || errors.Is(err, errdefs.ErrClosed)
}

// Submit implements stream.Stream.
func (l *lasting) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	for try := 0; ; try++ {
		s, err := l.current(ctx)
		if err != nil {
			return nil, err
		}
		t, err := s.Submit(ctx, b)
		if !isBroken(err) || try > 0 {
			return t, err
		}
		if err := l.retire(ctx, s); err != nil {
			return nil, err
		}
	}
}

// now returns the open stream, or nil.
func (l *lasting) now() (stream.Stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errdefs.ErrClosed
	}
	return l.cur, nil
}

func (l *lasting) set(s stream.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cur = s
}

// take waits for the turn. Whoever got nil gives it back by <-l.turn.
func (l *lasting) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a stream to be opened or closed: %w", context.Cause(ctx))
	}
}

// current returns the open stream, and opens one if there is none.
func (l *lasting) current(ctx context.Context) (stream.Stream, error) {
	if s, err := l.now(); s != nil || err != nil {
		return s, err
	}
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-l.turn }()
	if s, err := l.now(); s != nil || err != nil {
		return s, err
	}
	s, err := l.open()
	if err != nil {
		return nil, err
	}
	l.set(s)
	return s, nil
}

// retire closes s, which broke, if it still is the current stream.
func (l *lasting) retire(ctx context.Context, s stream.Stream) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer func() { <-l.turn }()
	if cur, err := l.now(); cur != s || err != nil {
		return err
	}
	// The first Close may tell again why it broke, as its tickets have, and have closed it all the same.
	if err := s.Close(ctx); err != nil && s.Close(ctx) != nil {
		return err
	}
	l.set(nil)
	return nil
}

// Close implements stream.Stream.
func (l *lasting) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.quit()
	select {
	case <-l.watching:
	case <-ctx.Done():
		return fmt.Errorf("close a stream that lasts: its watcher has not ended: %w", context.Cause(ctx))
	}
	if err := l.take(ctx); err != nil {
		return err
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	s := l.cur // if it is nil it stays so: who has the turn next finds this closed
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	if err := s.Close(ctx); err != nil {
		return err
	}
	l.set(nil)
	return nil
}
