// Package ctxio reads named files until a context ends. This includes FIFOs without a writer and
// terminals. A read of a regular file is not interrupted, but after the context has ended no read
// starts.
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

// File is a file whose reads return when its context ends. It is not safe for concurrent use,
// except that one other goroutine may call Close.
type File struct {
	ctx     context.Context
	f       *os.File
	regular bool
	stop    func() bool    // unregisters the callback for the end of the context
	woken   sync.WaitGroup // waits for that callback
}

// Open opens the named file for reading. If it is a FIFO, the first read waits for a writer.
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
		// only files that never block for long have no deadlines
		_ = f.SetReadDeadline(time.Unix(1, 0))
	})
	if info.Mode()&fs.ModeNamedPipe != 0 {
		if err := r.awaitWriter(); err != nil {
			_ = r.Close()
			return nil, err
		}
	}
	return r, nil
}

// awaitWriter waits until a pipe has data or had a writer. Before that, a read of a FIFO would
// return io.EOF.
func (r *File) awaitWriter() error {
	c, err := r.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("read %s: %w", r.f.Name(), err)
	}
	err = c.Read(func(fd uintptr) bool { // Read waits for the file between calls of the function
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		// the following read returns the error
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	return r.because(err)
}

// Regular reports whether the file can be opened and read again. This is not possible for a pipe.
func (r *File) Regular() bool { return r.regular }

// Read implements io.Reader. When the context has ended, it returns the context's cause.
func (r *File) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, r.because(r.ctx.Err())
	}
	n, err := r.f.Read(p)
	return n, r.because(err)
}

// because returns the context's cause if the context has ended and err is not nil, otherwise err.
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
