package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// Driver is the driver name in device.Info.
const Driver = "host"

// Device is the CPU and its memory. It implements device.Device.
type Device struct {
	info device.Info
	dead chan struct{} // closed by Close
	work sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	nextQueue int
	queues    map[*Queue]bool      // open
	spans     map[*mem.Region]span // regions that are not freed
}

var _ device.Device = (*Device)(nil)

// Open opens the device; the caller closes it. A process may open it several times, each with
// separate regions and queues.
func Open() (*Device, error) {
	var memory unix.Sysinfo_t
	var kernel unix.Utsname
	if err := errors.Join(unix.Sysinfo(&memory), unix.Uname(&kernel)); err != nil {
		return nil, fmt.Errorf("open host device: %w", err)
	}
	leak.Add(leak.Handles, 1)
	return &Device{
		info: device.Info{
			Driver: Driver, Name: cpuName(), UUID: Driver + "-0", NUMANode: -1,
			MemoryBytes: int64(memory.Totalram) * int64(memory.Unit), Multiprocs: runtime.NumCPU(), DriverVersion: unix.ByteSliceToString(kernel.Release[:]),
		},
		dead: make(chan struct{}), queues: make(map[*Queue]bool), spans: make(map[*mem.Region]span),
	}, nil
}

// cpuName returns the processor's product name, or its architecture if the kernel reports no name.
func cpuName() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // empty if the file does not exist
	for line := range strings.Lines(string(text)) {
		if key, name, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(name)
		}
	}
	return runtime.GOARCH + " CPU"
}

// Info describes the device. The number of copy engines is zero, because the CPU copies.
func (d *Device) Info() device.Info { return d.info }

// OpenQueue opens a *Queue, which also implements device.BatchCopier and device.Launcher. The
// options have no effect.
func (d *Device) OpenQueue(device.QueueOptions) (device.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("open queue: %w", errClosed())
	}
	d.nextQueue++
	q := newQueue(d, d.nextQueue)
	d.queues[q] = true
	leak.Add(leak.Queues, 1)
	return q, nil
}

// forget removes q from the open queues.
func (d *Device) forget(q *Queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues[q] {
		delete(d.queues, q)
		leak.Add(leak.Queues, -1)
	}
}

// Close waits for running work. Enqueued work fails with ErrClosed. Close frees all memory, and
// returns an error if queues are open or regions were not freed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	queues, spans := d.queues, d.spans
	d.queues, d.spans = nil, nil
	d.mu.Unlock()

	close(d.dead)
	for q := range queues {
		q.abandon()
	}
	d.work.Wait()
	leak.Add(leak.Queues, -int64(len(queues)))
	var errs []error
	bytes := int64(0)
	for r, s := range spans {
		bytes += r.Len()
		errs = append(errs, s.release(r))
	}
	if len(queues) > 0 || len(spans) > 0 {
		errs = append(errs, fmt.Errorf("%d queues and %d regions (%d bytes) were still open: %w", len(queues), len(spans), bytes, errdefs.ErrBusy))
	}
	leak.Add(leak.Handles, -1)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close host device: %w", err)
	}
	return nil
}

func errClosed() error { return fmt.Errorf("the device is closed: %w", errdefs.ErrClosed) }

func errInvalid(what string, args ...any) error {
	return fmt.Errorf(what+": %w", append(args, errdefs.ErrInvalid)...)
}
