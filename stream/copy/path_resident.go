package copy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/nap"
	"github.com/kvlane/kvlane/stream"
)

// Defaults and limits of ResidentOptions.
const (
	DefaultResidentLease       = 5 * time.Millisecond
	DefaultResidentIdle        = 500 * time.Microsecond
	DefaultResidentWorkers     = 4
	MaxResidentWorkers         = 8
	DefaultResidentWorkerBytes = 64 << 10
)

// ResidentOptions say how the resident kernel behaves. The zero value is the default.
type ResidentOptions struct {
	// Lease is how long a kernel may stay, busy or not: the longest that it holds up who synchronises the whole device,
	// and that it outlives a process that was killed. Zero: DefaultResidentLease.
	Lease time.Duration
	// Idle is how long a kernel stays without work. Zero: DefaultResidentIdle.
	Idle time.Duration
	// Workers is how many thread blocks share a batch that is too large for one, at most MaxResidentWorkers. Each is a
	// kernel of its own, that starts when it gets work. Zero: DefaultResidentWorkers, or one under Options.Prepare.
	Workers int
	// WorkerBytes is how much of a batch a worker gets before another is asked too: about what one copies in the time that
	// a second takes to see its entry. Zero: DefaultResidentWorkerBytes.
	WorkerBytes int64
}

func (o *ResidentOptions) validate(bad func(format string, args ...any)) {
	if o.Lease < 0 {
		bad("resident lease %v is negative", o.Lease)
	}
	if o.Idle < 0 {
		bad("resident idle limit %v is negative", o.Idle)
	}
	if o.Workers < 0 || o.Workers > MaxResidentWorkers {
		bad("%d resident workers are not 0 to %d", o.Workers, MaxResidentWorkers)
	}
	if o.WorkerBytes < 0 {
		bad("%d bytes for a resident worker are negative", o.WorkerBytes)
	}
}

func (o ResidentOptions) withDefaults() ResidentOptions {
	if o.Lease == 0 {
		o.Lease = DefaultResidentLease
	}
	if o.Idle == 0 {
		o.Idle = DefaultResidentIdle
	}
	if o.Workers == 0 {
		o.Workers = DefaultResidentWorkers
	}
	if o.WorkerBytes == 0 {
		o.WorkerBytes = DefaultResidentWorkerBytes
	}
	return o
}

// What the path is for: batches so small that a launch would be a good part of their time. A larger one, which only a
// forced path gets, goes by in parts of many entries.
const (
	residentPieces = 2048
	residentBytes  = 8 << 20
)

// resident is the path of the same name: kernels that stay on the device for a while and take their work from rings in
// pinned memory (see device.KernelResident). They run on queues of their own, or the stream's queue would stand still as
// long as they stay. So the device keeps no order between them and that queue, and the host does: a batch of another path
// is issued when all resident ones before it are done, and the other way round (Stream.mayFollow).
//
// The first worker takes small batches, one after the other; several share a larger one, which waits until those before it
// are done, and holds up those behind it. That keeps the order of batches between workers.
type resident struct {
	s       *Stream
	o       ResidentOptions
	workers []*worker
	latest  *op  // issued last
	wide    bool // latest is shared by several workers
	demand  demand
}

func newResident(s *Stream) *resident {
	o := s.opts.Resident
	if s.opts.Prepare && o.Workers == 0 {
		o.Workers = 1 // each is at work on a queue of the hardware: see Options.Prepare
	}
	return &resident{s: s, o: o.withDefaults()}
}

func (r *resident) available() error {
	l, ok := r.s.queue.(device.Launcher)
	if !ok {
		return fmt.Errorf("it runs no kernels: %w", errdefs.ErrNotSupported)
	}
	if !hasKernel(l, device.KernelResident) {
		return fmt.Errorf("it has no kernel %s: %w", device.KernelResident, errdefs.ErrNotSupported)
	}
	return nil
}

func (r *resident) takes(v *survey) bool {
	if v.ways&wayPeer != 0 {
		return false // between devices it was never measured
	}
	return r.s.opts.Path == stream.PathResident || max(v.copies, v.descs) <= residentPieces && v.bytes <= r.most()
}

// most is how many bytes a batch may have that the path was not forced for. The planner knows several workers.
func (r *resident) most() int64 {
	if r.o.Workers == 1 {
		return r.o.WorkerBytes
	}
	return residentBytes
}

func (r *resident) calls() int { return 1 }

// prepare makes the workers. What a failure leaves behind, quiesce and free give back.
func (r *resident) prepare() error {
	for len(r.workers) < r.o.Workers {
		w, err := newWorker(r.s.dev, r.o)
		if err != nil {
			return err
		}
		if len(r.workers) == 0 { // which takes every batch, or a part of it
			w.started = func() { r.demand.leaves.Store(int64(r.s.opts.Clock.Since(r.s.epoch) + r.o.Lease)) }
		}
		r.workers = append(r.workers, w)
	}
	return nil
}

// turn has nothing to do: the host holds what comes next until all is done.
func (r *resident) turn() error { return nil }

func (r *resident) quiesce(ctx context.Context) (failed, err error) {
	for _, w := range r.workers {
		f, e := w.close(ctx)
		failed, err = errors.Join(failed, f), errors.Join(err, e)
	}
	return failed, err
}

func (r *resident) free() error {
	var errs []error
	r.workers = slices.DeleteFunc(r.workers, func(w *worker) bool {
		err := w.free(r.s.dev)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// share returns how many workers share o.
func (r *resident) share(o *op) int {
	return int(min(ceilDiv(o.stats.bytes, r.o.WorkerBytes), int64(len(r.workers))))
}

// room reports whether another entry can follow those in flight.
func (r *resident) room(o *op) (span, bool) {
	n := r.share(o)
	if r.s.apart > 0 && r.latest != o && (r.wide || n > 1) {
		return span{}, false
	}
	for _, w := range r.workers[:n] {
		if !w.room() {
			return span{}, false
		}
	}
	return span{}, true
}

// step posts an entry to each worker that shares the batch. The first is at work while the others' are written.
func (r *resident) step(o *op, _ span, it *item) (done bool, err error) {
	if o.held && o.steps == 0 {
		// The stream's queue was told to wait for somebody else's event, of which a resident kernel knows nothing. The
		// event of this empty step comes after that, and mayFollow holds the next step until it is done.
		return false, nil
	}
	n := r.share(o)
	r.demand.taken.Store(int64(o.Started.Sub(r.s.epoch)))
	r.latest, r.wide = o, n > 1
	workers, share := r.workers[:n], int64(math.MaxInt64)
	if r.wide {
		share = max(ceilDiv(o.stats.bytes, int64(n)), device.PieceBytes)
	}
	// A worker reads its entry at once, and a table only after that: the pieces of a small batch go into the entries. One of
	// many small pieces would take many entries, each with its own way to the device and back.
	inline := o.stats.descs+o.stats.paged <= n*device.ResidentInline
	e := &landing{}
	it.apart, it.calls, it.event = true, 1, e
	for i, w := range workers {
		if o.at.described() {
			workers = workers[:i]
			break
		}
		seq, bytes := w.post(&o.at, share, inline)
		e.add(w, seq)
		it.bytes += bytes
	}
	for _, w := range workers {
		if err := w.ensure(); err != nil {
			return false, err
		}
	}
	return o.at.described(), nil
}

// landing is the event of a step: done when every worker has done what it was given. It implements device.Event, for one
// goroutine at a time, that which completes.
type landing struct {
	parts [MaxResidentWorkers]part
	n     int
	due   time.Time // when it is expected; zero: nobody said
}

type part struct {
	worker *worker
	seq    uint64
}

func (l *landing) add(w *worker, seq uint64) {
	l.parts[l.n] = part{w, seq}
	l.n++
}

// Done implements device.Event.
func (l *landing) Done() (bool, error) { return l.ask(false) }

// ask reports whether all parts are done, with an error once each of them is done or has failed: one that failed says
// nothing of the others. Asking the driver too takes a while, and tells of a kernel that died. Every part is looked at each
// time, and one that is done never again: the device has just written each word, and reading it takes a while too.
func (l *landing) ask(driver bool) (done bool, err error) {
	pending := false
	done = true
	for i := 0; i < l.n; i++ {
		p := &l.parts[i]
		d, e := p.worker.landed(p.seq, driver)
		switch {
		case e != nil:
			done, err = done && d, errors.Join(err, e)
		case d:
			l.n--
			*p = l.parts[l.n]
			i--
		default:
			pending = true
		}
	}
	if pending {
		return false, nil
	}
	return done, err
}

// landingYield is how many polls Wait makes before others get a turn: most entries take a few microseconds.
const landingYield = 64

// Expect implements device.ExpectedEvent.
func (l *landing) Expect(at time.Time) { l.due = at }

// Wait implements device.Event.
func (l *landing) Wait(ctx context.Context) error {
	begun := time.Now()
	for polls := 1; ; polls++ {
		now, left := time.Now(), nap.Unexpected
		if !l.due.IsZero() {
			left = l.due.Sub(now)
		}
		waited := now.Sub(begun)
		if done, err := l.ask(waited >= nap.Spin); done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if pause := nap.Pause(waited, left); pause > 0 {
			nap.Sleep(pause)
		} else if polls%landingYield == 0 {
			runtime.Gosched()
		}
	}
}

// Close implements device.Event.
func (l *landing) Close() {}
