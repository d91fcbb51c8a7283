package storage

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// file is a registered file.
type file struct {
	s   *Storage
	drv File

	mu      sync.Mutex
	closing bool
	gone    bool
	calls   int                    // running calls
	live    map[*transfer]struct{} // transfers that are not known to be finished
	left    []*transfer            // transfers in live that no caller uses
	changed chan struct{}          // closed and replaced when a call ends or a transfer finishes
}

// enqueuer is a file of a library with asynchronous transfers.
type enqueuer struct{ *file }

var (
	_ device.StorageFile     = (*file)(nil)
	_ device.StorageEnqueuer = (*enqueuer)(nil)
)

// Mode implements device.StorageFile.
func (f *file) Mode() device.StorageMode { return f.drv.Mode() }

// Read implements device.StorageFile.
func (f *file) Read(dst mem.Extent, off int64) (int64, error) { return f.move(Read, dst, off) }

// Write implements device.StorageFile.
func (f *file) Write(src mem.Extent, off int64) (int64, error) { return f.move(Write, src, off) }

func (f *file) move(d Direction, e mem.Extent, off int64) (int64, error) {
	n, err := f.carry(d, e, off)
	if err != nil {
		return n, fmt.Errorf("%s file, %d bytes at %d: %w", d, e.Len, off, err)
	}
	return n, nil
}

func (f *file) carry(d Direction, e mem.Extent, off int64) (int64, error) {
	if err := f.begin(e, off); err != nil {
		return 0, err
	}
	defer f.end()
	if e.Len == 0 {
		return 0, nil
	}
	n, err := f.drv.Move(d, e, off)
	return checked(n, e.Len, err)
}

// checked returns an error if the library returned an impossible count.
func checked(n, asked int64, err error) (int64, error) {
	if err == nil && (n < 0 || n > asked) {
		return 0, fmt.Errorf("the library reports %d of %d bytes as moved: %w", n, asked, errdefs.ErrBroken)
	}
	return n, err
}

// begin checks a transfer and keeps the file open until end.
func (f *file) begin(e mem.Extent, off int64) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if err := f.s.mine(e.Region); err != nil {
		return err
	}
	if off < 0 {
		return fmt.Errorf("offset %d is out of range: %w", off, errdefs.ErrInvalid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing || f.s.isClosing() {
		return fmt.Errorf("the file is closed: %w", errdefs.ErrClosed)
	}
	f.calls++
	return nil
}

func (s *Storage) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

func (f *file) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls--
	close(f.changed)
	f.changed = make(chan struct{})
}

// idle reports whether the file is known to be unused.
func (f *file) idle() bool {
	f.reap()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls == 0 && len(f.live) == 0
}

// reap finishes completed transfers, for owners that no longer poll them.
func (f *file) reap() {
	f.mu.Lock()
	list := make([]*transfer, 0, len(f.live))
	for t := range f.live {
		list = append(list, t)
	}
	f.mu.Unlock()
	for _, t := range list {
		if t.retain() {
			_, _, _ = t.Done() // an owner that still uses the transfer calls Done itself
			t.drop()
		}
	}
}

// Close implements device.StorageFile.
func (f *file) Close(ctx context.Context) error {
	for {
		t, changed, done := f.step()
		if done {
			return nil
		}
		var err error
		if t != nil {
			_, err = t.Wait(ctx)
			over := t.isOver()
			t.drop()
			if over {
				err = nil // the owner receives the transfer's error
			}
		} else {
			select {
			case <-changed:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if err != nil {
			return fmt.Errorf("close file: it is in use: %w: %w", errdefs.ErrBusy, err)
		}
	}
}

// step closes the file if it is unused. Otherwise it returns what Close must wait for: a retained
// transfer, or the channel for the end of a call.
func (f *file) step() (t *transfer, changed <-chan struct{}, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	switch {
	case f.gone:
		return nil, nil, true
	case f.calls > 0:
		return nil, f.changed, false
	}
	for t := range f.live {
		if t.retain() {
			return t, nil, false
		}
	}
	if len(f.live) > 0 {
		return nil, f.changed, false // the last of them is about to finish
	}
	f.deregister()
	f.s.forget(f)
	return nil, nil, true
}

// deregister releases the file. The caller holds mu.
func (f *file) deregister() {
	f.gone = true
	f.drv.Deregister()
	leak.Add(leak.Handles, -1)
}

func (s *Storage) forget(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, f)
}

// abandon closes a file that is still open.
func (f *file) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	if !f.gone {
		f.deregister()
	}
}
