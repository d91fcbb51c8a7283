package uring

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
)

// Limits and defaults.
const (
	DefaultDepth = 32
	MaxDepth     = 4096
	// MaxBytes is the maximum length of one request (MAX_RW_COUNT).
	MaxBytes = 0x7ffff000
)

// Options are the options of a ring. The zero value has the defaults.
type Options struct {
	Depth int // maximum number of requests in flight, 1 to MaxDepth; default DefaultDepth
	API   API // default System
}

// Ring is an io_uring, created by Open. All methods are safe for concurrent use.
type Ring struct {
	api   API
	fd    int
	depth int

	rings, sqes []byte // mappings shared with the kernel

	// Pointers to words that the kernel accesses concurrently.
	sqHead, sqTail, cqHead, cqTail, cqOverflow *uint32
	sqMask, cqMask                             uint32
	sq                                         []sqe
	cq                                         []cqe

	submitting sync.Mutex // guards the submission queue; taken before mu
	waiting    sync.Mutex // guards the completion queue; taken before mu

	mu      sync.Mutex
	changed sync.Cond // signals submitted requests and the closing of the ring
	slots   []Op      // requests in flight; the index is the user data
	free    []uint32  // free slots
	// inFlight is the number of submitted requests that were not reaped. It is increased after the
	// kernel has accepted the requests, so it may temporarily be negative. If it is positive, a
	// completion will arrive.
	inFlight    int
	buffers     int // number of registered buffers
	bufferBytes int64
	closed      bool
	released    bool
	broken      error
}

// Open creates a ring. It returns ErrInvalid for an invalid depth, ErrNotSupported with the reason
// if the kernel or a sandbox does not permit rings, and ErrNoMemory.
func Open(o Options) (_ *Ring, err error) {
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	if o.API.Setup == nil {
		o.API = System()
	}
	if o.Depth < 1 || o.Depth > MaxDepth {
		return nil, fmt.Errorf("open io_uring of depth %d: must be 1 to %d: %w", o.Depth, MaxDepth, errdefs.ErrInvalid)
	}
	p := new(Params)
	fd, errno := o.API.Setup(uint32(o.Depth), p)
	if errno != 0 {
		return nil, unavailable(errno)
	}
	r := &Ring{api: o.API, fd: fd, depth: o.Depth, slots: make([]Op, o.Depth)}
	r.changed.L = &r.mu
	leak.Add(leak.Handles, 1)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open io_uring: %w", err), r.release())
		}
	}()
	const features = featSingleMmap | featNoDrop | featStable
	if p.features&features != features {
		return nil, fmt.Errorf("the kernel's io_uring is older than Linux 5.6 (features %#x): %w", p.features, errdefs.ErrNotSupported)
	}
	if err := r.probe(); err != nil {
		return nil, err
	}
	if err := r.mapQueues(p); err != nil {
		return nil, err
	}
	for i := range r.depth {
		r.free = append(r.free, uint32(i))
	}
	return r, nil
}

// mapQueues maps the queues, which share one mapping, and the submission entries.
func (r *Ring) mapQueues(p *Params) (err error) {
	bytes := max(p.sqOff.array+4*p.sqEntries, p.cqOff.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	if r.rings, err = r.mmap(offSQRing, int(bytes)); err != nil {
		return err
	}
	if r.sqes, err = r.mmap(offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{}))); err != nil {
		return err
	}
	at := func(off uint32) unsafe.Pointer { return unsafe.Pointer(&r.rings[off]) }
	word := func(off uint32) *uint32 { return (*uint32)(at(off)) }
	r.sqHead, r.sqTail = word(p.sqOff.head), word(p.sqOff.tail)
	r.cqHead, r.cqTail, r.cqOverflow = word(p.cqOff.head), word(p.cqOff.tail), word(p.cqOff.overflow)
	r.sqMask, r.cqMask = *word(p.sqOff.ringMask), *word(p.cqOff.ringMask)
	r.sq = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqes[0])), p.sqEntries)
	r.cq = unsafe.Slice((*cqe)(at(p.cqOff.cqes)), p.cqEntries)
	// Entry i of the queue always refers to entry i of the array. The indirection is for programs
	// that reorder entries.
	for i := range unsafe.Slice(word(p.sqOff.array), p.sqEntries) {
		*word(p.sqOff.array + 4*uint32(i)) = uint32(i)
	}
	return nil
}

func (r *Ring) mmap(off int64, bytes int) ([]byte, error) {
	b, err := unix.Mmap(r.fd, off, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of queues: %w", bytes, err)
	}
	leak.Add(leak.HostBytes, int64(bytes))
	return b, nil
}

// Depth returns the maximum number of requests in flight.
func (r *Ring) Depth() int { return r.depth }

// InFlight returns the number of submitted requests whose completions were not returned by Wait.
func (r *Ring) InFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.depth - len(r.free)
}

// Close refuses new requests, waits until none is in flight, and frees the ring. Completions that
// were not returned by Wait are dropped. If it cannot wait, it returns an error, and the ring and
// the memory of requests stay in use. Further calls do nothing.
func (r *Ring) Close() error {
	r.submitting.Lock() // afterwards all submissions are in flight
	r.mu.Lock()
	r.closed = true
	r.changed.Broadcast()
	r.mu.Unlock()
	r.submitting.Unlock()
	r.waiting.Lock()
	defer r.waiting.Unlock()
	if r.released {
		return nil
	}
	rest := make([]Completion, r.depth)
	for r.InFlight() > 0 {
		if _, err := r.reap(rest); err != nil {
			return fmt.Errorf("close io_uring with %d requests in flight: %w", r.InFlight(), err)
		}
	}
	if err := r.release(); err != nil {
		return fmt.Errorf("close io_uring: %w", err)
	}
	return nil
}

// release frees everything in reverse order.
func (r *Ring) release() error {
	r.released = true
	var errs []error
	for _, b := range [][]byte{r.sqes, r.rings} {
		if b != nil {
			leak.Add(leak.HostBytes, -int64(len(b)))
			errs = append(errs, unix.Munmap(b))
		}
	}
	leak.Add(leak.RegisteredBytes, -r.bufferBytes)
	leak.Add(leak.Handles, -1)
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// breaks records the error that makes the ring unusable, and returns it.
func (r *Ring) breaks(what string, errno syscall.Errno) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken == nil {
		r.broken = fmt.Errorf("%s: %w: %w", what, errno, errdefs.ErrBroken)
	}
	return r.broken
}

// lost returns an error if the kernel has dropped completions.
func (r *Ring) lost() error {
	if n := atomic.LoadUint32(r.cqOverflow); n != 0 {
		return r.breaks(fmt.Sprintf("io_uring dropped %d completions", n), syscall.EBADR)
	}
	return nil
}
