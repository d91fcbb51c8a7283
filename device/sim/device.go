package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
)

// Device is a simulated GPU. It implements device.Device.
type Device struct {
	o     Options
	info  device.Info
	space *space
	link  link
	sched *scheduler // nil unless Options.Interleave
	dead  chan struct{}
	life  context.Context // canceled when dead is closed
	end   context.CancelFunc

	mu        sync.Mutex
	closed    bool
	queues    []*Queue // open, ascending by id
	nextQueue int
	// number of unfinished waits for words, enqueued by streams of the host program
	parked     int
	unparked   chan struct{}   // closed when parked becomes zero
	peers      map[int]*Device // devices whose memory is accessible, by index
	memBytes   int64
	lockBytes  int64
	quarantine []quarantined
	quarBytes  int64
	misuse     []error
	moreMisuse int

	files         sync.Mutex       // acquire before mu
	storage       *storage.Storage // open, or nil
	storageFailed error            // permanent error of opening the storage
	traffic       [directions]atomic.Int64
	figures       struct {
		sync.Mutex
		StorageFigures
	}
}

var _ device.Device = (*Device)(nil)

// maxMisuse is the number of misuses that the error of Device.Close describes.
const maxMisuse = 8

// Open creates a simulated device. The caller closes it.
func Open(o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open simulated device: %w", err)
	}
	o.setDefaults()
	d := &Device{
		o: o, space: newSpace(o.Index), dead: make(chan struct{}), link: link{clock: o.Clock, latency: o.LatencyPerOp},
		info: device.Info{
			Driver: "sim", Index: o.Index, Name: o.Name, UUID: fmt.Sprintf("sim-%d", o.Index), NUMANode: -1,
			MemoryBytes: o.MemoryBytes, Multiprocs: 1, DriverVersion: "1", CopyEngines: 2,
		},
	}
	if o.BandwidthGBps > 0 {
		d.link.nsPerByte = 1 / o.BandwidthGBps // 1e9 bytes per second are one byte per nanosecond
	}
	d.life, d.end = context.WithCancel(context.Background())
	if o.Interleave != nil {
		d.sched = newScheduler(d, *o.Interleave)
	}
	leak.Add(leak.Handles, 1)
	return d, nil
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// OpenQueue opens a *Queue, which also implements device.BatchCopier and device.Launcher. The
// options have no effect.
func (d *Device) OpenQueue(device.QueueOptions) (device.Queue, error) {
	const call = "simQueueCreate"
	if f, hit := d.o.Faults.Hit(OpOpen); hit {
		return nil, fmt.Errorf("open queue: %w", errInjected(call, &f))
	}
	if err := d.standStill(call); err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("open queue: %w", errClosed(call))
	}
	d.nextQueue++
	q := newQueue(d, d.nextQueue)
	d.queues = append(d.queues, q)
	leak.Add(leak.Queues, 1)
	q.start()
	return q, nil
}

// forget removes q from the list of open queues and reports whether it was in it.
func (d *Device) forget(q *Queue) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, open := range d.queues {
		if open == q {
			d.queues = append(d.queues[:i:i], d.queues[i+1:]...)
			leak.Add(leak.Queues, -1)
			return true
		}
	}
	return false
}

// openQueues returns the open queues, ascending by id. The slice does not change later, because
// forget copies it.
func (d *Device) openQueues() []*Queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queues[:len(d.queues):len(d.queues)]
}

// byHandle returns the open queue with this native handle, or nil.
func (d *Device) byHandle(h uintptr) *Queue {
	for _, q := range d.openQueues() {
		if q.handle == h {
			return q
		}
	}
	return nil
}

// misused records a misuse that no call could return.
func (d *Device) misused(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.misuse) < maxMisuse {
		d.misuse = append(d.misuse, err)
	} else {
		d.moreMisuse++
	}
}

// Close stops enqueued work and frees all memory. Its error lists open queues, regions that were
// not freed, and all detected misuses. Events of unfinished work fail with ErrClosed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	queues := d.queues
	d.queues = nil
	d.mu.Unlock()

	close(d.dead)
	d.end()
	d.sched.stop()
	for _, q := range queues {
		q.abandon()
	}
	leak.Add(leak.Queues, -int64(len(queues)))
	errs := []error{d.abandonStorage()}
	regions, bytes := d.reclaim()
	d.release(0)

	if len(queues) > 0 || regions > 0 {
		errs = append(errs, fmt.Errorf("%d queues and %d regions (%d bytes) were still open: %w", len(queues), regions, bytes, errdefs.ErrBusy))
	}
	d.mu.Lock()
	errs = append(errs, d.misuse...)
	if d.moreMisuse > 0 {
		errs = append(errs, fmt.Errorf("and %d more", d.moreMisuse))
	}
	d.mu.Unlock()
	leak.Add(leak.Handles, -1)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close simulated device %d: %w", d.o.Index, err)
	}
	return nil
}
