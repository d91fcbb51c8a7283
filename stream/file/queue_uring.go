package file

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	// fixedBytes is the kernel's maximum length of a registered buffer.
	fixedBytes = 1 << 30
	// If the kernel has no memory for a request, the request is retried up to submitTries times,
	// every submitPause.
	submitPause = time.Millisecond
	submitTries = 1000
	// If waiting for a ring fails, its requests may still complete, so the ring is checked every
	// brokenPause.
	brokenPause = 10 * time.Millisecond
)

// ring is the interface of *uring.Ring, which tests replace with a ring of failing requests.
type ring interface {
	Depth() int
	InFlight() int
	RegisterBuffers(buffers ...[]byte) error
	Submit(ops ...uring.Op) (int, error)
	Wait(out []uring.Completion) (int, error)
	Close() error
}

// uringQueue moves transfers by one io_uring. A flush submits all begun transfers with one system
// call. One goroutine handles completions.
type uringQueue struct {
	ring   ring
	reaped chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex
	begun    []*transfer // not submitted
	inFlight int         // transfers that are submitted or being submitted, and not finished
	broken   bool        // waiting for the ring failed, and it accepts no requests
	taking   bool        // reap is handling completions, and will call flush
	staging  *mem.Region // registered with the ring in pieces of fixedBytes
}

var (
	_ bufferQueue     = (*uringQueue)(nil)
	_ quarantineQueue = (*uringQueue)(nil)
)

// openURing opens a queue for at most depth unfinished transfers. It returns ErrNotSupported, with
// the reason, if the kernel or a sandbox does not provide io_uring.
func openURing(depth int) (queue, error) {
	r, err := uring.Open(uring.Options{Depth: depth})
	if err != nil {
		return nil, err
	}
	return newURingQueue(r), nil
}

func newURingQueue(r ring) *uringQueue {
	q := &uringQueue{ring: r, reaped: make(chan struct{})}
	go q.reap()
	return q
}

func (q *uringQueue) path() stream.Path { return stream.PathURing }

func (q *uringQueue) begin(t *transfer) {
	q.mu.Lock()
	q.begun = append(q.begun, t)
	q.mu.Unlock()
}

// flush submits begun transfers up to the ring's capacity. While reap handles completions, flush
// does nothing, because reap calls it afterwards.
func (q *uringQueue) flush() {
	for {
		all, ops := q.next()
		if len(all) == 0 {
			return
		}
		n, err := q.submit(ops)
		q.ended(len(all) - n)
		for _, t := range all[n:] {
			t.finish(0, err) // the kernel did not receive it
		}
	}
}

// next removes transfers from begun, as many as the ring has space for.
func (q *uringQueue) next() ([]*transfer, []uring.Op) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.begun), q.ring.Depth()-q.inFlight)
	if q.broken {
		n = len(q.begun) // all fail with the same error
	}
	if q.taking || n == 0 {
		return nil, nil
	}
	all := slices.Clone(q.begun[:n])
	q.begun = slices.Delete(q.begun, 0, n)
	q.inFlight += n
	ops := make([]uring.Op, n)
	for i, t := range all {
		ops[i] = q.op(t)
	}
	return all, ops
}

// ended records that n transfers are no longer in flight, or were never submitted.
func (q *uringQueue) ended(n int) {
	q.mu.Lock()
	q.inFlight -= n
	q.mu.Unlock()
}

// submit submits ops. It returns the number of submitted ops, and an error if not all were
// submitted.
func (q *uringQueue) submit(ops []uring.Op) (sent int, err error) {
	for tries := 0; sent < len(ops); {
		n, err := q.ring.Submit(ops[sent:]...)
		sent += n
		switch {
		case err == nil:
			tries = 0
		case errors.Is(err, errdefs.ErrBusy) && tries < submitTries:
			// The ring has space for all unfinished transfers, so the kernel must lack memory.
			tries++
			time.Sleep(submitPause)
		case errors.Is(err, errdefs.ErrBusy): // no attempts left
			return sent, fmt.Errorf("the kernel accepted no request for %v: %w", submitTries*submitPause, unix.EOPNOTSUPP)
		default:
			// EOPNOTSUPP makes the stream stop using the path.
			return sent, fmt.Errorf("%w: %w", err, unix.EOPNOTSUPP)
		}
	}
	return sent, nil
}

// op returns the ring's operation for the rest of t.
func (q *uringQueue) op(t *transfer) uring.Op {
	b := t.mem.Bytes()[t.done:]
	o := uring.Op{Code: uring.Read, FD: t.file.fd, Off: t.off + t.done, Buf: b[:min(len(b), uring.MaxBytes)], Token: t}
	if t.write {
		o.Code = uring.Write
	}
	if t.direct {
		o.FD = t.file.direct
	}
	if t.mem.Region == q.staging {
		first := t.mem.Off + t.done
		if last := first + int64(len(o.Buf)) - 1; first/fixedBytes == last/fixedBytes {
			o.Buffer = 1 + int(first/fixedBytes)
		}
	}
	return o
}

// reap finishes transfers until the ring is closed, or until it is broken and no transfer is in
// flight. Transfers of a broken ring may still access memory, so they are quarantined until they
// have completed.
func (q *uringQueue) reap() {
	defer close(q.reaped)
	done := make([]uring.Completion, q.ring.Depth())
	for {
		n, err := q.ring.Wait(done)
		if err != nil {
			q.mu.Lock()
			q.broken = true
			q.mu.Unlock()
			q.flush()
			if q.ring.InFlight() == 0 {
				return
			}
			time.Sleep(brokenPause)
			continue
		}
		q.take(true)
		for i := range done[:n] {
			c := &done[i]
			if t, ok := c.Op.Token.(*transfer); ok {
				t.finish(int64(c.N), native(c.Err))
			}
			*c = uring.Completion{}
		}
		q.take(false)
		q.ended(n)
		q.flush()
	}
}

// quarantined implements quarantineQueue.
func (q *uringQueue) quarantined() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken {
		return q.ring.InFlight()
	}
	return 0
}

// release implements quarantineQueue. It does nothing, because reap finishes the transfers.
func (q *uringQueue) release(context.Context) {}

func (q *uringQueue) take(taking bool) {
	q.mu.Lock()
	q.taking = taking
	q.mu.Unlock()
}

// native returns the errno of a failed request.
func native(err error) error {
	if e := (*uring.OpError)(nil); errors.As(err, &e) {
		return e.Errno
	}
	return err
}

// useBuffer implements bufferQueue.
func (q *uringQueue) useBuffer(r *mem.Region) error {
	var parts [][]byte
	for b := r.Bytes(); len(b) > 0; b = b[len(parts[len(parts)-1]):] {
		parts = append(parts, b[:min(len(b), fixedBytes)])
	}
	if err := q.ring.RegisterBuffers(parts...); err != nil {
		return err
	}
	q.mu.Lock()
	q.staging = r
	q.mu.Unlock()
	return nil
}

func (q *uringQueue) close(ctx context.Context) error {
	closed := make(chan error, 1)
	// Ring.Close waits for requests in flight, and there are none.
	go func() { closed <- q.ring.Close() }()
	select {
	case err := <-closed:
		if err == nil {
			<-q.reaped
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("close io_uring: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
}
