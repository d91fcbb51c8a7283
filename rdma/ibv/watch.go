package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// watch waits with the Go runtime's poller until a descriptor of the library is readable.
type watch struct {
	file *os.File
	conn syscall.RawConn
	// lock is a semaphore with one element. The file has only one deadline, so only one call may
	// wait at a time.
	lock   chan struct{}
	closed atomic.Bool
}

// newWatch watches fd and makes it non-blocking. The library still owns fd and closes it.
func newWatch(fd int, what string) (*watch, error) {
	// The Go runtime closes the file's descriptor, so the file needs a duplicate.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor of %s: %w", what, err)
	}
	if err := unix.SetNonblock(own, true); err != nil {
		return nil, errors.Join(fmt.Errorf("make descriptor of %s non-blocking: %w", what, err), unix.Close(own))
	}
	file := os.NewFile(uintptr(own), what)
	// Setting a deadline fails if the descriptor cannot be polled.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", what, err), file.Close())
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", what, err), file.Close())
	}
	w := &watch{file: file, conn: conn, lock: make(chan struct{}, 1)}
	w.lock <- struct{}{}
	return w, nil
}

// wait calls read whenever the descriptor may be readable, until read returns true or an error.
// read must not block. wait returns the cause of ctx when ctx ends, and ErrClosed after close.
func (w *watch) wait(ctx context.Context, read func() (done bool, err error)) error {
	select {
	case <-w.lock:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { w.lock <- struct{}{} }()

	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		// The error is ignored: it occurs only for a closed file, which also ends the wait.
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	})
	var failed error
	err := w.conn.Read(func(uintptr) bool {
		var done bool
		done, failed = read()
		return done || failed != nil
	})
	if !stop() {
		// Remove the deadline that interrupted this wait, so that it does not affect the next one.
		<-interrupted
		_ = w.file.SetReadDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case err != nil && w.closed.Load(): // the runtime's error is internal
		return errdefs.ErrClosed
	case err != nil:
		return err
	}
	return failed
}

// close ends all waits. When it returns, read is no longer called. Further calls return nil.
func (w *watch) close() error {
	w.closed.Store(true)
	if err := w.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	<-w.lock
	w.lock <- struct{}{}
	return nil
}
