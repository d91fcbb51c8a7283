package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/describe"
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

// Validate reports every field that is out of range.
func (o ResidentOptions) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
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
	return errors.Join(errs...)
}

func (o ResidentOptions) withDefaults() ResidentOptions {
	return ResidentOptions{
		Lease:       cmp.Or(o.Lease, DefaultResidentLease),
		Idle:        cmp.Or(o.Idle, DefaultResidentIdle),
		Workers:     cmp.Or(o.Workers, DefaultResidentWorkers),
		WorkerBytes: cmp.Or(o.WorkerBytes, DefaultResidentWorkerBytes),
	}
}

// What the path is for: batches so small that a launch would be a good part of their time. A larger one, which only a
// forced path gets, goes by in parts of many entries.
const (
	residentPieces = 2048
	residentBytes  = 8 << 20
)

// Resident is the path of the same name: kernels that stay on the device for a while and take their work from rings in
// pinned memory (see device.KernelResident). They run on queues of their own, or the stream's queue would stand still as
// long as they stay. So the device keeps no order between them and that queue, and the host has to.
//
// The first worker takes small batches, one after the other; several share a larger one, which waits until those before it
// are done, and holds up those behind it. That keeps the order of batches between workers. Up to ResidentInline pieces travel in
// a worker's entry of the ring, so that it has nothing else to read before it copies.
type Resident struct {
	env     *Env
	o       ResidentOptions
	workers []*worker
	wide    bool // the batch that was issued last is shared by several workers
	demand  demand
}

var _ Owner = (*Resident)(nil)

// NewResident makes the path, or returns why the queue lacks it: an ErrNotSupported.
func NewResident(env *Env, o ResidentOptions) (Mover, error) {
	if _, err := env.launcher(device.KernelResident); err != nil {
		return nil, err
	}
	return &Resident{env: env, o: o.withDefaults()}, nil
}

// Takes implements Mover: between devices the path was never measured.
func (r *Resident) Takes(b *Batch) (ok, sums bool) {
	most := int64(residentBytes)
	if r.o.Workers == 1 { // the planner knows several
		most = r.o.WorkerBytes
	}
	small := max(b.Copies, b.Descs) <= residentPieces && b.Bytes <= most
	return b.Ways&describe.Peer == 0 && (r.env.Forced || small), false
}

// Prepare makes the workers.
func (r *Resident) Prepare() error {
	for len(r.workers) < r.o.Workers {
		w, err := newWorker(r.env.Device, r.o)
		if err != nil {
			return err
		}
		if len(r.workers) == 0 { // which takes every batch, or a part of it
			w.started = func() { r.demand.leaves.Store(int64(r.env.Now() + r.o.Lease)) }
		}
		r.workers = append(r.workers, w)
	}
	return nil
}

// Quiesce implements Owner.
func (r *Resident) Quiesce(ctx context.Context) (failed, err error) {
	for _, w := range r.workers {
		f, e := w.close(ctx)
		failed, err = errors.Join(failed, f), errors.Join(err, e)
	}
	return failed, err
}

// Free implements Owner.
func (r *Resident) Free() error {
	var errs []error
	r.workers = slices.DeleteFunc(r.workers, func(w *worker) bool {
		err := w.free(r.env.Device)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// share returns how many workers share b.
func (r *Resident) share(b *Batch) int {
	return int(min(describe.CeilDiv(b.Bytes, r.o.WorkerBytes), int64(len(r.workers))))
}

// Room reports whether another entry can follow those in flight, which are all of this path. Those of b itself come last.
func (r *Resident) Room(b *Batch, f Flight) bool {
	n := r.share(b)
	if !f.admits(1) || f.Steps > 0 && b.Sent == 0 && (r.wide || n > 1) {
		return false
	}
	return !slices.ContainsFunc(r.workers[:n], func(w *worker) bool { return !w.room() })
}

// Step posts an entry to each worker that shares the batch. The first is at work while the others' are written.
func (r *Resident) Step(b *Batch, st *Step) (done bool, err error) {
	n := r.share(b)
	r.demand.taken.Store(int64(b.Begun))
	r.wide = n > 1
	workers, share := r.workers[:n], int64(math.MaxInt64)
	if r.wide {
		share = max(describe.CeilDiv(b.Bytes, int64(n)), device.PieceBytes)
	}
	// A worker reads its entry at once, and a table only after that: the pieces of a small batch go into the entries. One of
	// many small pieces would take many entries, each with its own way to the device and back.
	inline := b.Descs+b.PagedDescs <= n*device.ResidentInline
	e := &landing{}
	st.Calls, st.Event = 1, e
	for i, w := range workers {
		if b.At.Done() {
			workers = workers[:i]
			break
		}
		seq, bytes := w.post(&b.At, share, inline)
		e.add(w, seq)
		st.Bytes += bytes
	}
	for _, w := range workers {
		if err := w.ensure(); err != nil {
			return false, err
		}
	}
	return b.At.Done(), nil
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

// Expect implements device.ExpectedEvent.
func (l *landing) Expect(at time.Time) { l.due = at }

// Wait implements device.Event.
func (l *landing) Wait(ctx context.Context) error {
	return await(ctx, func() time.Time { return l.due }, l.ask)
}

// Close implements device.Event.
func (l *landing) Close() {}
