package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// openCuFile opens a queue of path cufile: workers that wait for each transfer, or queues of the device that run them.
func openCuFile(o *Options) (queue, error) {
	storage := o.CuFile.Storage
	if o.CuFile.Queues == 0 {
		return newWorkers(stream.PathCuFile, o.Transfers, o.Transfers, nil, func(t *transfer) (int64, error) { return cuFile(storage, t) }), nil
	}
	q := &cuFileQueues{}
	for range o.CuFile.Queues {
		on, err := o.Device.OpenQueue(device.QueueOptions{})
		if err != nil {
			return q, fmt.Errorf("open queue for cuFile: %w", err)
		}
		lane := &cuFileLane{storage: storage, on: on, todo: make(chan *transfer, o.Transfers), flying: make(chan flight, o.Transfers)}
		q.lanes = append(q.lanes, lane)
		q.running.Go(lane.enqueue)
		q.running.Go(lane.complete)
	}
	return q, nil
}

// cuFile moves the rest of t, and waits for it.
func cuFile(s device.Storage, t *transfer) (int64, error) {
	f, err := t.file.storage(s)
	if err != nil {
		return 0, err
	}
	if e := t.rest(); t.write {
		return f.Write(e, t.off+t.done)
	} else {
		return f.Read(e, t.off+t.done)
	}
}

func (t *transfer) rest() mem.Extent { return t.mem.Sub(t.done, t.mem.Len-t.done) }

// cuFileQueues is a queue of transfers that queues of the device run, each in order.
type cuFileQueues struct {
	once    sync.Once
	running sync.WaitGroup
	lanes   []*cuFileLane
}

func (q *cuFileQueues) path() stream.Path { return stream.PathCuFile }
func (q *cuFileQueues) flush()            {}

// begin gives t to the lane that has least to do.
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
	})
	q.running.Wait() // for nothing: there are no transfers
	for len(q.lanes) > 0 {
		if err := q.lanes[0].on.Close(ctx); err != nil {
			return fmt.Errorf("close queue for cuFile: %w", err)
		}
		q.lanes = q.lanes[1:]
	}
	return nil
}

// cuFileLane is one queue of the device, with a goroutine that enqueues and one that completes.
type cuFileLane struct {
	storage device.Storage
	todo    chan *transfer
	load    atomic.Int64 // transfers unfinished
	mu      sync.Mutex   // a queue of the device has one user at a time
	on      device.Queue
	flying  chan flight
}

type flight struct {
	t *transfer
	x device.Transfer
}

func (l *cuFileLane) enqueue() {
	defer close(l.flying)
	for t := range l.todo {
		x, err := l.start(t)
		if err != nil {
			l.load.Add(-1)
			t.finish(0, err)
			continue
		}
		l.flying <- flight{t, x}
	}
}

func (l *cuFileLane) start(t *transfer) (device.Transfer, error) {
	f, err := t.file.storage(l.storage)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := f.(device.StorageEnqueuer)
	switch {
	case !ok:
		return nil, fmt.Errorf("this cuFile has no transfers on queues: %w", errdefs.ErrNotSupported)
	case t.write:
		return e.EnqueueWrite(l.on, t.rest(), t.off+t.done)
	}
	return e.EnqueueRead(l.on, t.rest(), t.off+t.done)
}

// complete waits for the transfers in their order, which is the device's.
func (l *cuFileLane) complete() {
	for f := range l.flying {
		n, err := f.x.Wait(context.Background())
		if _, done, _ := f.x.Done(); !done {
			// The device is broken, and does not say what it still touches. Once its queue is idle nothing does; until then the batch
			// stays unresolved.
			l.mu.Lock()
			err = errors.Join(err, l.on.Close(context.Background()))
			l.mu.Unlock()
		}
		f.x.Close()
		l.load.Add(-1)
		f.t.finish(n, err)
	}
}
