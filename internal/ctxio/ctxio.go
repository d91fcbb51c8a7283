// Package ctxio reads named files until a context ends, also a FIFO without a writer and a
// terminal. Reads of a regular file are not interrupted, but none starts after the end of the
// context.
package ctxio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File is a file that is read until its context ends. It is not safe for concurrent use, except
// that Close may be called once from another goroutine.
type File struct {
	ctx     context.Context
	f       *os.File
	regular bool
	stop    func() bool    // stops watching the context
	woken   sync.WaitGroup // the watching goroutine
}

// Open opens the named file for reading. It waits for the writer of a FIFO.
func Open(ctx context.Context, name string) (*File, error) {
	// Without O_NONBLOCK the system call would wait for the writer of a FIFO, and could not be
	// stopped.
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close() // it was not used
		return nil, err
	}
	r := &File{ctx: ctx, f: f, regular: info.Mode().IsRegular()}
	if r.regular {
		return r, nil
	}
	r.woken.Add(1)
	r.stop = context.AfterFunc(ctx, func() {
		defer r.woken.Done()
		_ = f.SetReadDeadline(time.Unix(1, 0)) // files without deadlines never block for long
	})
	if info.Mode()&fs.ModeNamedPipe != 0 {
		if err := r.awaitWriter(); err != nil {
			_ = r.Close()
			return nil, err
		}
	}
	return r, nil
}

// awaitWriter waits until a pipe has bytes or had a writer. Before that a read of a FIFO would
// return the end of the file.
func (r *File) awaitWriter() error {
	c, err := r.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("read %s: %w", r.f.Name(), err)
	}
	err = c.Read(func(fd uintptr) bool { // waits for the file between its calls
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR) // the read will return the error
	})
	return r.because(err)
}

// Regular reports whether the file can be opened and read again with the same bytes, unlike a pipe.
func (r *File) Regular() bool { return r.regular }

// Read implements io.Reader. After the end of the context it returns the context's cause.
func (r *File) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, r.because(r.ctx.Err())
	}
	n, err := r.f.Read(p)
	return n, r.because(err)
}

// because replaces the error that the end of the context caused by the context's cause.
func (r *File) because(err error) error {
	if err != nil && r.ctx.Err() != nil {
		return fmt.Errorf("read %s: %w", r.f.Name(), context.Cause(r.ctx))
	}
	return err
}

// Close closes the file.
func (r *File) Close() error {
	if r.stop != nil {
		if r.stop() {
			r.woken.Done()
		}
		r.woken.Wait()
	}
	return r.f.Close()
}
