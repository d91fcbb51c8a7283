package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// batch is a batch that is accepted and unresolved. Its goroutine does everything but what transfers' ends call.
type batch struct {
	stream *Stream
	ticket *stream.Ticket
	b      *mem.Batch
	bytes  int64
	pieces int
	files  []*File
	holds  mem.Holds // of memory of other processes
	cut    cutter
	by     choice
	ctx    context.Context // ends when no more is to be issued: cancelled, or failed
	cancel context.CancelCauseFunc

	started time.Time
	wake    chan struct{} // look again: one token is enough
	flying  atomic.Int32  // transfers unfinished
	cached  atomic.Int64  // bytes that were in the page cache
	refused atomic.Bool   // a file refused O_DIRECT

	noDirect error // why a file has no descriptor with O_DIRECT

	current  *part      // its transfers are being begun
	sweep    *sweep     // of those that are begun, that no worker has yet; nil: none
	ready    []*part    // theirs can be
	waiting  []*part    // to cross to or from the device
	crossing []crossing // under way, in the inner stream's order

	mu   sync.Mutex
	done []*part // all transfers are finished
	err  error   // the first failure
}

// run is the batch's goroutine.
func (b *batch) run() {
	s := b.stream
	defer s.running.Done()
	err := b.await()
	if err == nil {
		b.started = time.Now()
		err = b.move()
	}
	completion := b.completion(err)
	b.cancel(nil)
	b.dropFiles()
	if err != nil {
		err = fmt.Errorf("batch %d: %w", b.ticket.ID(), err)
	}
	s.stats.add(&completion, err)
	<-s.slots
	b.ticket.Resolve(completion, err)
}

var errStopped = fmt.Errorf("it was stopped: %w", errdefs.ErrCanceled)

// await waits for the dependencies.
func (b *batch) await() error {
	for i, d := range b.b.After {
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return fmt.Errorf("dependency %d failed: %w", i, err)
			}
		case <-b.ctx.Done():
		case <-b.stream.down:
		}
		if b.ctx.Err() != nil {
			return context.Cause(b.ctx)
		}
		select {
		case <-d.Done():
		default:
			return fmt.Errorf("stream closes before the batch has started: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
		}
	}
	return context.Cause(b.ctx)
}

// fail has the batch end with err, if it has not failed yet.
func (b *batch) fail(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.mu.Unlock()
	b.cancel(err)
}

// failed is fail for what a transfer says.
func (b *batch) failed(t *transfer, err error) {
	err = t.explain(err)
	if errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		b.stream.giveUp(t.q.path(), t.file, err)
	}
	b.fail(err)
}

func (b *batch) verdict() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// mayDirect reports whether p's file is to be moved with O_DIRECT where that is aligned.
func (b *batch) mayDirect(p *piece) bool {
	f := p.file
	switch {
	case !f.refused.Load():
		return !p.buffered
	case f.fd < 0: // of which nothing is known
	case f.noDirect == nil:
		b.refused.Store(true)
		b.stream.refuse(f)
	default:
		b.noDirect = f.noDirect
		if !f.counted.Swap(true) {
			b.stream.stats.unopened.Add(1)
		}
	}
	return false
}

func (b *batch) completion(err error) stream.Completion {
	c := stream.Completion{Bytes: b.bytes, Pieces: b.pieces, Path: b.by.path, Reason: b.by.reason, GivenUp: b.by.givenUp, Started: b.started, Finished: time.Now()}
	switch {
	case b.started.IsZero():
		return stream.Completion{Pieces: b.pieces, Reason: ReasonUnstarted}
	case b.bytes == 0:
		c.Path, c.Reason = stream.PathNone, ReasonEmpty
	case err != nil:
	case b.cached.Load() > b.bytes/2:
		c.Path, c.Reason = stream.PathPosix, ReasonCached
	case b.noDirect != nil:
		c.Reason = ReasonUnopened
		if c.GivenUp == nil {
			c.GivenUp = b.noDirect
		}
	case b.refused.Load():
		c.Reason = ReasonRefused
	}
	return c
}

// holdFiles keeps the files of the pieces open, and holds their memory.
func (b *batch) holdFiles() error {
	for i := range b.cut.pieces {
		if err := b.holds.Add(b.cut.pieces[i].mem.Region); err != nil {
			b.dropFiles()
			return err
		}
		f := b.cut.pieces[i].file
		if n := len(b.files); n > 0 && b.files[n-1] == f { // the pieces of a file are in a row
			continue
		}
		if err := f.hold(); err != nil {
			b.dropFiles()
			return err
		}
		b.files = append(b.files, f)
	}
	return nil
}

func (b *batch) dropFiles() {
	for _, f := range b.files {
		f.drop()
	}
	b.files = nil
	b.holds.Release()
}
