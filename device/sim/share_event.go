package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

var _ device.EventSharer = (*Device)(nil)

// A shared event is a page of a file in memory, with words of 8 bytes: the number of the last work that it was told to follow, that of the
// last that is done, that of the first that failed, and the process that made it.
const (
	wordFollowed = 8 * iota
	wordDone
	wordFailed
	wordMaker
	eventBytes = 4096
)

// sharedEvent implements device.SharedEvent.
type sharedEvent struct {
	dev    *Device
	queue  *Queue // of its own, on which it follows
	page   []byte
	fd     int // -1: another process's
	stop   chan struct{}
	looks  sync.WaitGroup
	words  sync.Mutex // of done and failed, which those that look write in no order
	mu     sync.Mutex
	closed bool
}

// NewSharedEvent implements device.EventSharer.
func (d *Device) NewSharedEvent() (device.SharedEvent, error) {
	page, fd, err := hostmem.AllocShared(eventBytes)
	if err != nil {
		return nil, fmt.Errorf("make shared event: %w", err)
	}
	hostmem.StoreUint64(page[wordMaker:], uint64(os.Getpid()))
	e, err := d.sharedEvent(page, fd)
	if err != nil {
		return nil, fmt.Errorf("make shared event: %w", errors.Join(err, unix.Close(fd)))
	}
	return e, nil
}

// OpenSharedEvent implements device.EventSharer.
func (d *Device) OpenSharedEvent(h device.Handle) (device.SharedEvent, error) {
	if h.Type != device.HandleMemFD {
		return nil, fmt.Errorf("open shared event by a handle of type %s: %w", h.Type, errdefs.ErrNotSupported)
	}
	page, err := hostmem.MapShared(h.FD, eventBytes)
	if err != nil {
		return nil, fmt.Errorf("open shared event: %w", err)
	}
	e, err := d.sharedEvent(page, -1)
	if err != nil {
		return nil, fmt.Errorf("open shared event: %w", err)
	}
	return e, nil
}

// sharedEvent takes the page, also when it fails.
func (d *Device) sharedEvent(page []byte, fd int) (*sharedEvent, error) {
	q, err := d.OpenQueue(device.QueueOptions{})
	if err != nil {
		return nil, errors.Join(err, hostmem.Free(page))
	}
	own, ok := q.(*Queue)
	if !ok {
		panic(fmt.Sprintf("sim: a queue of a simulated device is a %T", q))
	}
	return &sharedEvent{dev: d, queue: own, page: page, fd: fd, stop: make(chan struct{})}, nil
}

func (s *sharedEvent) usable() error {
	if s.closed {
		return fmt.Errorf("shared event: %w", errdefs.ErrClosed)
	}
	return nil
}

// Handle implements device.SharedEvent.
func (s *sharedEvent) Handle() (h device.Handle, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return h, err
	}
	if s.fd < 0 {
		return h, fmt.Errorf("another process's event has no handle here: %w", errdefs.ErrInvalid)
	}
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return h, fmt.Errorf("export event: %w", err)
	}
	return device.Handle{Type: device.HandleMemFD, Device: s.dev.info.UUID, FD: fd}, nil
}

// Follow implements device.SharedEvent.
func (s *sharedEvent) Follow(e device.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if s.fd < 0 {
		return fmt.Errorf("another process's event follows nothing here: %w", errdefs.ErrInvalid)
	}
	if err := s.queue.Wait(e); err != nil {
		return err
	}
	r, err := s.queue.Record()
	if err != nil {
		return err
	}
	own, ok := r.(*Event)
	if !ok {
		panic(fmt.Sprintf("sim: an event of a simulated device is a %T", r))
	}
	n := hostmem.LoadUint64(s.page[wordFollowed:]) + 1
	hostmem.StoreUint64(s.page[wordFollowed:], n)
	s.looks.Go(func() {
		<-own.done // a queue resolves its events
		s.words.Lock()
		defer s.words.Unlock()
		if failed := hostmem.LoadUint64(s.page[wordFailed:]); own.verdict() != nil && (failed == 0 || n < failed) {
			hostmem.StoreUint64(s.page[wordFailed:], n)
		}
		hostmem.StoreUint64(s.page[wordDone:], max(n, hostmem.LoadUint64(s.page[wordDone:])))
		own.Close()
	})
	return nil
}

// Event implements device.SharedEvent.
func (s *sharedEvent) Event(closed func()) (device.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	e, n := newEvent(s.queue), hostmem.LoadUint64(s.page[wordFollowed:])
	e.lent = closed
	s.looks.Go(func() { e.resolve(s.reached(n), s.dev.link.now()) })
	return e, nil
}

// reached waits until work n is done, and returns why it failed. Nobody tells, so it is polled, as the words that streams wait for are.
func (s *sharedEvent) reached(n uint64) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for pause := pollFirst; hostmem.LoadUint64(s.page[wordDone:]) < n; pause = min(2*pause, pollMost) {
		if maker := int(hostmem.LoadUint64(s.page[wordMaker:])); pause == pollMost && errors.Is(unix.Kill(maker, 0), unix.ESRCH) {
			return fmt.Errorf("process %d, whose work this waits for, is gone: %w", maker, errdefs.ErrLost)
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-s.stop:
			return fmt.Errorf("shared event: %w", errdefs.ErrClosed)
		case <-s.dev.dead:
			return errClosed("simCtxDestroy")
		}
	}
	if failed := hostmem.LoadUint64(s.page[wordFailed:]); failed != 0 && failed <= n {
		return fmt.Errorf("work of another process failed: %w", errdefs.ErrBroken)
	}
	return nil
}

// Close implements device.SharedEvent.
func (s *sharedEvent) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.queue.Close(ctx)
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("close shared event: %w", err)
	}
	s.closed = true
	close(s.stop)
	s.looks.Wait()
	err = errors.Join(err, hostmem.Free(s.page))
	if s.fd >= 0 {
		err = errors.Join(err, unix.Close(s.fd))
	}
	return err
}
