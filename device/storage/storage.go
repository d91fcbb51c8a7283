package storage

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// DefaultTransfers is the default number of queued transfers for which memory is allocated in
// advance.
const DefaultTransfers = 64

// Storage implements device.Storage with a Driver.
type Storage struct {
	drv   Driver
	index int // of the device
	words pool
	gone  func()

	mu      sync.Mutex
	closing bool
	closed  bool
	calls   int // running calls of Register, RegisterBuffer and UnregisterBuffer
	files   map[*file]struct{}
	buffers map[*mem.Region]bool // false while the driver registers or unregisters the buffer
}

var _ device.Storage = (*Storage)(nil)

// New returns a storage of dev. Closing the storage calls gone, unless it is nil. If New fails, the
// caller must close drv.
func New(dev device.Device, drv Driver, o device.StorageOptions, gone func()) (*Storage, error) {
	s := &Storage{
		drv: drv, index: dev.Info().Index, words: pool{dev: dev}, gone: gone,
		files: make(map[*file]struct{}), buffers: make(map[*mem.Region]bool),
	}
	n := o.Transfers
	switch {
	case n < 0:
		return nil, fmt.Errorf("%d transfers: must not be negative: %w", n, errdefs.ErrInvalid)
	case n == 0:
		n = DefaultTransfers
	}
	if err := s.words.grow(n); err != nil {
		return nil, fmt.Errorf("make words for %d transfers: %w", n, err)
	}
	leak.Add(leak.Handles, 1)
	return s, nil
}

// begin starts a call that must finish before Close proceeds. end ends it.
func (s *Storage) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return fmt.Errorf("storage of device %d: %w", s.index, errdefs.ErrClosed)
	}
	s.calls++
	return nil
}

func (s *Storage) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
}

// Register implements device.Storage.
func (s *Storage) Register(fd int) (device.StorageFile, error) {
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("register file: %w", err)
	}
	defer s.end()
	df, err := s.drv.Register(fd)
	if err != nil {
		return nil, fmt.Errorf("register file: %w", err)
	}
	f := &file{s: s, drv: df, live: make(map[*transfer]struct{}), changed: make(chan struct{})}
	s.mu.Lock()
	s.files[f] = struct{}{}
	s.mu.Unlock()
	leak.Add(leak.Handles, 1)
	if _, ok := df.(Enqueuer); ok {
		return &enqueuer{f}, nil
	}
	return f, nil
}

// RegisterBuffer implements device.Storage.
func (s *Storage) RegisterBuffer(r *mem.Region) error {
	err := s.mine(r)
	if err == nil {
		err = s.begin()
	}
	if err != nil {
		return fmt.Errorf("register buffer %s: %w", r, err)
	}
	defer s.end()
	s.mu.Lock()
	_, there := s.buffers[r]
	if !there {
		s.buffers[r] = false
	}
	s.mu.Unlock()
	if there {
		return fmt.Errorf("register buffer %s: %w", r, errdefs.ErrExists)
	}
	err = s.drv.RegisterBuffer(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.buffers, r)
		return fmt.Errorf("register buffer %s: %w", r, err)
	}
	s.buffers[r] = true
	return nil
}

// UnregisterBuffer implements device.Storage.
func (s *Storage) UnregisterBuffer(r *mem.Region) error {
	if err := s.begin(); err != nil {
		return fmt.Errorf("unregister buffer %s: %w", r, err)
	}
	defer s.end()
	s.mu.Lock()
	there := s.buffers[r]
	if there {
		s.buffers[r] = false
	}
	s.mu.Unlock()
	if !there {
		return fmt.Errorf("unregister buffer %s: %w", r, errdefs.ErrNotFound)
	}
	err := s.drv.UnregisterBuffer(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.buffers[r] = true
		return fmt.Errorf("unregister buffer %s: %w", r, err)
	}
	delete(s.buffers, r)
	return nil
}

// mine returns an error if r is not memory of the device.
func (s *Storage) mine(r *mem.Region) error {
	switch {
	case r == nil:
		return fmt.Errorf("no memory is given: %w", errdefs.ErrInvalid)
	case r.Kind() != mem.KindDevice || r.Device() != s.index:
		return fmt.Errorf("not memory of device %d: %w", s.index, errdefs.ErrInvalid)
	}
	return nil
}

// Close implements device.Storage.
func (s *Storage) Close() error { return s.shut(true) }

// Abandon is Close for a closing device: no transfer is running, and the device frees the words
// with its other memory. It always returns an error, which states that the storage was still open.
func (s *Storage) Abandon() error {
	err := s.shut(false)
	return errors.Join(fmt.Errorf("the storage of device %d was still open: %w", s.index, errdefs.ErrBusy), err)
}

func (s *Storage) shut(free bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	calls := s.calls
	files := make([]*file, 0, len(s.files))
	for f := range s.files {
		files = append(files, f)
	}
	s.mu.Unlock()
	busy := 0
	for _, f := range files {
		if free && !f.idle() {
			busy++
		}
	}
	if free && calls+busy > 0 {
		return fmt.Errorf("close storage of device %d: %d files and %d calls are in use: %w", s.index, busy, calls, errdefs.ErrBusy)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, f := range files {
		f.abandon()
	}
	if n := len(files) + len(s.buffers); n > 0 && free {
		errs = append(errs, fmt.Errorf("%d files and %d buffers were still registered: %w", len(files), len(s.buffers), errdefs.ErrBusy))
	}
	for r := range s.buffers {
		errs = append(errs, s.drv.UnregisterBuffer(r))
	}
	if free {
		errs = append(errs, s.words.close())
	}
	errs = append(errs, s.drv.Close())
	leak.Add(leak.Handles, -1)
	if s.gone != nil {
		s.gone()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close storage of device %d: %w", s.index, err)
	}
	return nil
}
