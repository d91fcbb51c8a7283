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

// batch is an accepted, unresolved batch. Its goroutine does all work, except that goroutines of
// queues handle finished transfers.
type batch struct {
	stream *Stream
	ticket *stream.Ticket
	b      *mem.Batch
	bytes  int64
	pieces int
	files  []*File
	holds  mem.Holds // acquired memory of other processes
	cut    cutter
	by     choice
	// ctx ends when the batch is canceled or has failed. After that no transfer begins.
	ctx    context.Context
	cancel context.CancelCauseFunc

	started  time.Time
	wake     chan struct{} // wakes the goroutine; one token is enough
	inFlight atomic.Int32  // unfinished transfers
	cached   atomic.Int64  // bytes read from the page cache
	refused  atomic.Bool   // a file refused O_DIRECT

	noDirect error // why a file has no descriptor with O_DIRECT

	current  *part      // part with transfers left to begin
	sweep    *sweep     // begun transfers that were not passed to a worker yet, or nil
	ready    []*part    // parts with transfers that can begin
	waiting  []*part    // parts that wait to be copied to or from the device
	crossing []crossing // crossings in flight, in the inner stream's order

	mu   sync.Mutex
	done []*part // parts without unfinished transfers
	err  error   // first failure
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
			return fmt.Errorf("the stream closed before the start of the batch: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
		}
	}
	return context.Cause(b.ctx)
}

// fail records err if it is the first failure, and ends the batch's ctx.
func (b *batch) fail(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.mu.Unlock()
	b.cancel(err)
}

// failed fails the batch with the error of a transfer. If the path is not supported, the stream
// stops using it on the file system.
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

// mayDirect reports whether aligned ranges of p may be moved with O_DIRECT. If not, it records the
// reason.
func (b *batch) mayDirect(p *piece) bool {
	f := p.file
	switch {
	case !f.refused.Load():
		return !p.buffered
	case f.fd < 0: // no descriptor
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

// holdFiles keeps the files of the pieces open and acquires their memory until dropFiles.
func (b *batch) holdFiles() error {
	for i := range b.cut.pieces {
		if err := b.holds.Add(b.cut.pieces[i].mem.Region); err != nil {
			b.dropFiles()
			return err
		}
		f := b.cut.pieces[i].file
		// Pieces of a file are adjacent.
		if n := len(b.files); n > 0 && b.files[n-1] == f {
			continue
		}
		if err := f.retain(); err != nil {
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
