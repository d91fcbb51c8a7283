package share

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/sys/nap"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Work is what an exporter has announced, as an importer waits for it. It holds the memory until it is closed, as a copy under way does: the
// Import's Close is ErrBusy, and an exporter that withdraws the memory waits. Safe for concurrent use, but for Close.
type Work struct {
	origin *mem.Origin
	signal *signal.Signal
	event  device.Event
	done   chan struct{}
	closed atomic.Bool
}

var _ stream.Recorded = (*Work)(nil)

// Done is closed when the work is done, or waited for no longer: Err says which.
func (w *Work) Done() <-chan struct{} { return w.done }

// Err returns why what came after the work was not to be trusted: ErrLost if the memory was lost before the work was done, ErrExpired if that
// took longer than ImportOptions.WaitMax. It is valid once Done is closed, or Event is done.
func (w *Work) Err() error {
	_, err := w.signal.Verdict(1)
	return err
}

// Event returns an event of the importing device for its queues to wait for. It is done when Done is closed, without an error whatever Err is:
// a queue cannot be told. It is closed with the Work.
func (w *Work) Event() device.Event { return w.event }

// Precede implements stream.Recorded. A copy of the memory fails if that is lost; of work that expired, only Err tells.
func (w *Work) Precede(ctx context.Context, s stream.EventStream) error {
	if known, err := w.signal.Verdict(1); known {
		return err
	}
	return s.WaitEvent(ctx, w.event)
}

// Close gives the event back, and lets go of the memory. A queue that waits for the event goes on waiting, and whoever has it touch the memory then
// holds that himself (mem.Origin.Hold). It does not block. A second Close does nothing.
func (w *Work) Close() {
	if w.closed.CompareAndSwap(false, true) {
		w.event.Close()
		w.origin.Release()
	}
}

// Announced returns the work that the exporter has announced last (Export.Announce), for queues and streams of the importing device to wait
// for there. No device waits for another process: this one looks at a word of the exporter's, and lets a queue of its own go on when the work is
// done, the memory is lost, or ImportOptions.WaitMax has passed. So the wait ends, Work.Err says how, and it ends a look of the host's later than the
// work, up to 200 us.
//
// ErrNotFound if nothing was announced; ErrLost; ErrNotSupported if the device has no words to wait for; ErrBusy while as many imports of the importer
// wait as streams may (device.StreamAdopter.WaitLimit): a queue waits for each, and what else waits in the process is not counted. While one waits a driver
// may hold up whoever makes or frees memory or queues, which the first call on an import does. It waits until ctx ends while 256 are waited for.
func (i *Import) Announced(ctx context.Context) (*Work, error) {
	w, err := i.in.announced(ctx, i.m, &i.desc)
	if err != nil {
		return nil, fmt.Errorf("ask for what was announced on %s: %w", i.desc.Identity, err)
	}
	return w, nil
}

func (in *Importer) announced(ctx context.Context, m *mapping, d *Descriptor) (_ *Work, err error) {
	if err := m.origin.Hold(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.origin.Release()
		}
	}()
	words, err := in.pool()
	if err != nil {
		return nil, err
	}
	w := &Work{origin: m.origin, done: make(chan struct{})}
	if w.signal, err = words.Take(ctx, 1); err != nil {
		return nil, err
	}
	if err := in.begin(ctx, m, d, w); err != nil {
		w.signal.Set(err)
		return nil, err
	}
	return w, nil
}

// begin has the mapping's queue wait, and somebody look for the work.
func (in *Importer) begin(ctx context.Context, m *mapping, d *Descriptor, w *Work) (err error) {
	m.mapped.Lock()
	defer m.mapped.Unlock()
	if m.follower == nil {
		if m.follower, err = in.follow(ctx, d); err != nil {
			return err
		}
	}
	f := m.follower
	n := hostmem.LoadUint64(f.page[wordAnnounced:])
	done := f.reached(n)
	if done {
		w.signal.Set(nil) // then the queue does not wait
	}
	if err := w.signal.Hold(f.stream, 1); err != nil {
		return err
	}
	if w.event, err = f.queue.Record(); err != nil {
		return err
	}
	if done {
		close(w.done)
		return nil
	}
	f.looks.Go(func() {
		w.signal.Set(w.await(f, n, in.waitMax))
		close(w.done)
	})
	return nil
}

// await looks until work n is done, or waited for no longer, and returns why that is.
func (w *Work) await(f *follower, n uint64, most time.Duration) error {
	for start := time.Now(); !f.reached(n); {
		if err := w.origin.Lost(); err != nil {
			return err
		}
		waited := time.Since(start)
		if waited >= most {
			return fmt.Errorf("the exporter's work was not done in %v: %w", most, errdefs.ErrExpired)
		}
		if pause := nap.Pause(waited, nap.Unexpected); pause > 0 {
			nap.Sleep(pause)
		} else {
			runtime.Gosched()
		}
	}
	return nil
}

// maxWorks is how many an importer waits for at a time.
const maxWorks = 256

// follower is how an importer's device waits for what is announced on an export.
type follower struct {
	page   []byte            // the exporter's
	queue  device.Queue      // waits for words
	stream device.HostStream // the queue
	looks  sync.WaitGroup    // at the page
}

// follow asks for the page, and opens what waits.
func (in *Importer) follow(ctx context.Context, d *Descriptor) (*follower, error) {
	ctx, cancel := context.WithTimeout(ctx, in.limit)
	defer cancel()
	l, h, err := dial(ctx, d, forEvent, in.users)
	if err != nil {
		return nil, err
	}
	f := new(follower)
	f.page, err = hostmem.MapShared(h.FD, pageBytes)
	if err = errors.Join(err, closeFiles(h), l.closeAll()); err == nil {
		f.queue, f.stream, err = openAdopted(in.waits)
	}
	if err != nil {
		return nil, errors.Join(err, f.close(ctx))
	}
	return f, nil
}

// pool returns the words that queues of all imports wait for.
func (in *Importer) pool() (_ *signal.Pool, err error) {
	in.pinning.Lock()
	defer in.pinning.Unlock()
	if in.waits == nil {
		return nil, fmt.Errorf("the importing device waits for no words: %w", errdefs.ErrNotSupported)
	}
	if in.words == nil {
		in.words, err = signal.Open(in.waits, maxWorks)
	}
	return in.words, err
}

// closePool unpins them. No queue waits any more.
func (in *Importer) closePool() error {
	in.pinning.Lock()
	defer in.pinning.Unlock()
	if in.words == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), in.limit)
	defer cancel()
	if err := in.words.Close(ctx); err != nil {
		return err
	}
	in.words = nil
	return nil
}

// reached reports whether work n is done.
func (f *follower) reached(n uint64) bool { return hostmem.LoadUint64(f.page[wordDone:]) >= n }

// close waits until the queue has gone on: the memory is lost, so that nobody looks for long. After an error it may be called again.
func (f *follower) close(ctx context.Context) error {
	f.looks.Wait()
	if f.queue != nil {
		if err := f.queue.Close(ctx); err != nil {
			return err
		}
		f.queue = nil
	}
	if f.page != nil {
		if err := hostmem.Free(f.page); err != nil {
			return err
		}
		f.page = nil
	}
	return nil
}

// unfollow closes what waits for the exporter's work. The memory is lost.
func (in *Importer) unfollow(m *mapping) error {
	m.mapped.Lock()
	defer m.mapped.Unlock()
	if m.follower == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), in.limit)
	defer cancel()
	if err := m.follower.close(ctx); err != nil {
		return err
	}
	m.follower = nil
	return nil
}
