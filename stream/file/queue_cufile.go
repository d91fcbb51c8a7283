package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// openCuFile opens a queue of path cufile: workers that wait for each transfer, or device queues
// that run transfers asynchronously.
func openCuFile(o *Options) (queue, error) {
	storage := o.CuFile.Storage
	calls := newWorkers(stream.PathCuFile, o, nil, func(t *transfer) (int64, error) { return cuFile(storage, t) })
	if o.CuFile.Queues == 0 {
		return calls, nil
	}
	q := &cuFileQueues{calls: calls}
	for range o.CuFile.Queues {
		on, err := o.Device.OpenQueue(device.QueueOptions{})
		if err != nil {
			return q, fmt.Errorf("open queue for cuFile: %w", err)
		}
		lane := &cuFileLane{
			storage: storage, on: on, calls: calls, waited: &q.waited, using: make(chan struct{}, 1), patience: idlePatience,
			todo: make(chan *transfer, o.begun()), inFlight: make(chan pendingTransfer, o.Transfers),
		}
		q.lanes = append(q.lanes, lane)
		q.running.Go(lane.enqueue)
		q.running.Go(lane.complete)
	}
	return q, nil
}

// cuFile moves the rest of t and waits for it.
func cuFile(s device.Storage, t *transfer) (int64, error) {
	f, err := t.file.storage(s)
	if err != nil {
		return 0, err
	}
	if e := t.remaining(); t.write {
		return f.Write(e, t.off+t.done)
	} else {
		return f.Read(e, t.off+t.done)
	}
}

func (t *transfer) remaining() mem.Extent { return t.mem.Sub(t.done, t.mem.Len-t.done) }

// idlePatience is the time for which a broken device queue may take to become idle. After that its
// transfers are quarantined.
const idlePatience = 10 * time.Second

// cuFileQueues distributes transfers to device queues. Each queue runs its transfers in order.
type cuFileQueues struct {
	once    sync.Once
	running sync.WaitGroup
	lanes   []*cuFileLane
	calls   *workers // for transfers that cannot be enqueued
	waited  atomic.Int64
}

var _ quarantineQueue = (*cuFileQueues)(nil)

func (q *cuFileQueues) path() stream.Path { return stream.PathCuFile }
func (q *cuFileQueues) flush()            {}

// begin passes t to the least loaded lane.
func (q *cuFileQueues) begin(t *transfer) {
	least := q.lanes[0]
	for _, l := range q.lanes[1:] {
		if l.load.Load() < least.load.Load() {
			least = l
		}
	}
	least.load.Add(1)
	least.todo <- t
}

func (q *cuFileQueues) close(ctx context.Context) error {
	q.once.Do(func() {
		for _, l := range q.lanes {
			close(l.todo)
		}
		q.running.Wait() // returns at once: there are no transfers
		_ = q.calls.close(ctx)
	})
	for _, l := range q.lanes {
		if err := l.on.Close(ctx); err != nil {
			return fmt.Errorf("close queue for cuFile: %w", err)
		}
	}
	return nil
}

// quarantined implements quarantineQueue.
func (q *cuFileQueues) quarantined() (n int) {
	for _, l := range q.lanes {
		l.mu.Lock()
		n += len(l.lost)
		l.mu.Unlock()
	}
	return n
}

// release implements quarantineQueue.
func (q *cuFileQueues) release(ctx context.Context) {
	for _, l := range q.lanes {
		l.release(ctx)
	}
}

// cuFileLane is one device queue with a goroutine that enqueues and one that completes.
type cuFileLane struct {
	storage  device.Storage
	calls    *workers
	waited   *atomic.Int64 // counts transfers passed to calls
	todo     chan *transfer
	load     atomic.Int64 // unfinished transfers
	on       device.Queue
	using    chan struct{} // holds a token while in use: a device queue has one user at a time
	inFlight chan pendingTransfer
	patience time.Duration

	mu     sync.Mutex
	broken error             // why nothing is enqueued any longer, or nil
	until  time.Time         // deadline for the broken queue to become idle
	lost   []pendingTransfer // quarantined
}

// pendingTransfer is an enqueued transfer.
type pendingTransfer struct {
	t   *transfer
	x   device.Transfer
	n   int64
	err error
}

func (l *cuFileLane) enqueue() {
	defer close(l.inFlight)
	for t := range l.todo {
		f, err := t.file.storage(l.storage)
		e, able := f.(device.StorageEnqueuer)
		// libcufile 1.15 corrupts its heap under many asynchronous transfers in compatibility mode,
		// where they are no faster than calls.
		waits := err == nil && (!able || !f.Mode().Direct)
		var x device.Transfer
		if err == nil && !waits {
			x, err = l.start(e, t)
			waits = errors.Is(err, errdefs.ErrNotSupported) // older libraries return it
		}
		switch {
		case waits:
			l.load.Add(-1)
			l.waited.Add(1)
			l.calls.begin(t)
		case err != nil:
			l.load.Add(-1)
			t.finish(0, err)
		default:
			l.inFlight <- pendingTransfer{t: t, x: x}
		}
	}
}

func (l *cuFileLane) start(e device.StorageEnqueuer, t *transfer) (device.Transfer, error) {
	l.using <- struct{}{}
	defer func() { <-l.using }()
	if broken := l.why(); broken != nil {
		// EOPNOTSUPP makes the stream stop using the path.
		return nil, fmt.Errorf("use queue for cuFile: %w: %w", broken, unix.EOPNOTSUPP)
	}
	if t.write {
		return e.EnqueueWrite(l.on, t.remaining(), t.off+t.done)
	}
	return e.EnqueueRead(l.on, t.remaining(), t.off+t.done)
}

// complete waits for the transfers in the order of the device queue. A broken queue may access
// memory until it is idle. If it is not idle in time, its transfers are quarantined: they stay
// unfinished, and their batches unresolved.
func (l *cuFileLane) complete() {
	for f := range l.inFlight {
		f.n, f.err = f.x.Wait(context.Background())
		if _, done, _ := f.x.Done(); done {
			l.end(f)
			continue
		}
		l.mu.Lock()
		if l.broken == nil {
			l.broken, l.until = errors.Join(errdefs.ErrBroken, f.err), time.Now().Add(l.patience)
		}
		l.lost = append(l.lost, f)
		l.mu.Unlock()
		ctx, cancel := context.WithDeadline(context.Background(), l.until)
		l.release(ctx)
		cancel()
	}
}

// release finishes the quarantined transfers if the queue becomes idle before ctx ends. After that
// the queue accesses no memory.
func (l *cuFileLane) release(ctx context.Context) {
	if l.why() == nil {
		return
	}
	select {
	case l.using <- struct{}{}:
		defer func() { <-l.using }()
	case <-ctx.Done():
		return
	}
	err := l.on.Close(ctx)
	if err != nil && ctx.Err() != nil {
		return // the queue is still open
	}
	l.mu.Lock()
	idle := l.lost
	l.lost = nil
	l.mu.Unlock()
	for _, f := range idle {
		f.err = errors.Join(f.err, err)
		l.end(f)
	}
}

func (l *cuFileLane) end(f pendingTransfer) {
	f.x.Close()
	l.load.Add(-1)
	f.t.finish(f.n, f.err)
}

// why returns the error that broke the queue, or nil.
func (l *cuFileLane) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}
