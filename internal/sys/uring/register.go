package uring

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// Probe reports whether this process can open rings with all features of this package. It returns
// nil, or an error that wraps ErrNotSupported with the reason. Other errors are inconclusive, for
// example a lack of memory or descriptors. It opens and closes a ring.
func Probe() error { return ProbeAPI(System()) }

// ProbeAPI is like Probe with other system calls.
func ProbeAPI(a API) error {
	r, err := Open(Options{Depth: 1, API: a})
	if err != nil {
		return err
	}
	return r.Close()
}

// probe checks that the kernel supports the needed opcodes.
func (r *Ring) probe() error {
	p := new(probe)
	switch errno := r.api.Register(r.fd, registerProbe, unsafe.Pointer(p), uint32(len(p.ops))); errno {
	case 0:
	case syscall.EINVAL:
		return fmt.Errorf("the kernel's io_uring is older than Linux 5.6 (%w): %w", errno, errdefs.ErrNotSupported)
	default:
		return fmt.Errorf("query the opcodes of io_uring: %w", unavailable(errno))
	}
	var errs []error
	for _, o := range needed {
		if int(o) >= int(p.opsLen) || p.ops[o].flags&opSupported == 0 {
			errs = append(errs, fmt.Errorf("io_uring has no opcode %d (%s): %w", uint8(o), o, errdefs.ErrNotSupported))
		}
	}
	return errors.Join(errs...)
}

// RegisterBuffers pins buffers once instead of for each request. Requests refer to them with
// Op.Buffer. It may be called once. If the limit of locked memory (RLIMIT_MEMLOCK) or the kernel
// does not permit it, the error wraps ErrNotSupported. The ring then works without registered
// buffers and ignores Op.Buffer.
func (r *Ring) RegisterBuffers(buffers ...[]byte) error {
	v, bytes := make([]iovec, len(buffers)), int64(0)
	for i, b := range buffers {
		v[i] = iovec{uint64(hostmem.Addr(b)), uint64(len(b))}
		bytes += int64(len(b))
	}
	what := fmt.Sprintf("register %d buffers of %d bytes", len(buffers), bytes)
	r.submitting.Lock()
	defer r.submitting.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("%s with io_uring: %w", what, errdefs.ErrClosed)
	}
	switch errno := r.api.Register(r.fd, registerBuffers, unsafe.Pointer(unsafe.SliceData(v)), uint32(len(v))); errno {
	case 0:
		r.buffers, r.bufferBytes = len(v), bytes
		leak.Add(leak.RegisteredBytes, bytes)
		return nil
	case syscall.EBADF, syscall.EFAULT, syscall.EINVAL:
		return fmt.Errorf("%s with io_uring: %w: %w", what, errno, errdefs.ErrInvalid)
	case syscall.EBUSY:
		return fmt.Errorf("%s with io_uring, which has some: %w: %w", what, errno, errdefs.ErrExists)
	default: // ENOMEM: the limit of locked memory is exceeded
		return fmt.Errorf("%s with io_uring: %w: %w", what, errno, errdefs.ErrNotSupported)
	}
}
