package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

var _ device.EventSharer = (*Device)(nil)

// sharedEvent implements device.SharedEvent by an interprocess event of CUDA's. What waits for it waits for what was recorded on it when the
// wait was enqueued.
type sharedEvent struct {
	dev    *Device
	handle cuda.Event
	queue  *queue // of its own, on which it follows; nil: another process's

	mu     sync.Mutex
	closed bool
}

// NewSharedEvent implements device.EventSharer.
func (d *Device) NewSharedEvent() (device.SharedEvent, error) {
	q, err := d.openQueue(device.QueueOptions{})
	if err != nil {
		return nil, fmt.Errorf("make shared event on device %d: %w", d.info.Index, err)
	}
	e, err := d.interprocess("cuEventCreate", func() (cuda.Event, cuda.Result) {
		return d.api.EventCreate(cuda.EventDisableTiming | cuda.EventInterprocess)
	})
	if err != nil {
		return nil, fmt.Errorf("make shared event on device %d: %w", d.info.Index, errors.Join(err, q.Close(context.Background()))) // which is idle
	}
	e.queue = q
	return e, nil
}

// OpenSharedEvent implements device.EventSharer.
func (d *Device) OpenSharedEvent(h device.Handle) (device.SharedEvent, error) {
	if h.Type != device.HandleCUDAIPC {
		return nil, fmt.Errorf("open shared event by a handle of type %s: %w", h.Type, errdefs.ErrNotSupported)
	}
	e, err := d.interprocess("cuIpcOpenEventHandle", func() (cuda.Event, cuda.Result) { return d.api.IPCOpenEventHandle(&h.Data) })
	if err != nil {
		return nil, fmt.Errorf("open shared event on device %d: %w", d.info.Index, err)
	}
	return e, nil
}

func (d *Device) interprocess(call string, get func() (cuda.Event, cuda.Result)) (*sharedEvent, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	mode, err := d.enterRelaxed()
	if err != nil {
		return nil, err
	}
	defer d.leaveRelaxed(mode)
	h, r := get()
	if r != cuda.Success {
		return nil, d.understood(r, call, "")
	}
	leak.Add(leak.Events, 1)
	return &sharedEvent{dev: d, handle: h}, nil
}

// use has f called while the event stands. own says that it has to be of this process.
func (s *sharedEvent) use(own bool, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("shared event: %w", errdefs.ErrClosed)
	case own && s.queue == nil:
		return fmt.Errorf("shared event: it is another process's: %w", errdefs.ErrInvalid)
	}
	return f()
}

// Handle implements device.SharedEvent.
func (s *sharedEvent) Handle() (h device.Handle, err error) {
	err = s.use(true, func() error {
		d := s.dev
		if err := d.begin(); err != nil {
			return err
		}
		defer d.end()
		mode, err := d.enterRelaxed()
		if err != nil {
			return err
		}
		defer d.leaveRelaxed(mode)
		data, r := d.api.IPCGetEventHandle(s.handle)
		h = device.Handle{Type: device.HandleCUDAIPC, Device: d.info.UUID, FD: -1, Data: data}
		return d.check(r, "cuIpcGetEventHandle", "")
	})
	return h, err
}

// Follow implements device.SharedEvent.
func (s *sharedEvent) Follow(e device.Event) error {
	return s.use(true, func() error {
		if err := s.queue.Wait(e); err != nil {
			return err
		}
		d := s.dev
		if err := d.enter(); err != nil {
			return err
		}
		defer d.leave()
		return d.check(d.api.EventRecord(s.handle, s.queue.stream), "cuEventRecord", "stream=%#x", s.queue.stream)
	})
}

// Event implements device.SharedEvent.
func (s *sharedEvent) Event(closed func()) (e device.Event, err error) {
	if closed == nil {
		closed = func() {}
	}
	err = s.use(false, func() error {
		leak.Add(leak.Events, 1)
		e = &event{dev: s.dev, handle: s.handle, lent: closed}
		return nil
	})
	return e, err
}

// Close implements device.SharedEvent.
func (s *sharedEvent) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.queue != nil {
		if err := s.queue.Close(ctx); err != nil {
			return fmt.Errorf("close shared event: %w", err)
		}
	}
	d := s.dev
	if err := d.begin(); err != nil {
		return fmt.Errorf("close shared event: %w", err)
	}
	defer d.end()
	mode, err := d.enterRelaxed()
	if err != nil {
		return fmt.Errorf("close shared event: %w", err)
	}
	defer d.leaveRelaxed(mode)
	if err := d.check(d.api.EventDestroy(s.handle), "cuEventDestroy_v2", "event=%#x", s.handle); err != nil {
		return fmt.Errorf("close shared event: %w", err)
	}
	s.closed = true
	leak.Add(leak.Events, -1)
	return nil
}
