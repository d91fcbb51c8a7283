package devicetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	gosync "sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func skipBatch(t *testing.T) {
	t.Helper()
	testkit.Skip(t, "batch", "queues of this device take one copy a call")
}

func testEvent(t *testing.T, h *harness) {
	const n = 32 << 20
	q, d, p := h.queue(t), h.device(t, n), h.pinned(t, n)
	sync(t, q) // nothing is enqueued yet

	var events []device.Event
	for i := range 8 {
		must(t, q.Fill(mem.All(d), byte(i+1)))
		must(t, q.Copy(mem.All(p), mem.All(d)))
		e, err := q.Record()
		must(t, err)
		events = append(events, e)
	}
	last := events[len(events)-1]
	must(t, wait(t, last))
	if bytes.Count(p.Bytes(), []byte{8}) != n {
		t.Error("the last event was done before the copy before it")
	}
	for i, e := range events { // earlier events are done as well
		if done, err := e.Done(); !done || err != nil {
			t.Errorf("event %d after a later one: done %v, %v", i, done, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.Wait(ctx); err != nil {
			t.Errorf("event %d is done, and yet a wait gave up: %v", i, err)
		}
		e.Close()
	}
}

func testCrossQueueWait(t *testing.T, h *harness) {
	const n, rounds = 4 << 20, 40
	q1, q2 := h.queue(t), h.queue(t)
	d, p := h.device(t, n), h.pinned(t, n)
	for i := range rounds {
		must(t, q1.Fill(mem.All(d), byte(i)))
		e1, err := q1.Record()
		must(t, err)
		must(t, q2.Wait(e1))
		must(t, q2.Copy(mem.All(p), mem.All(d)))
		e2, err := q2.Record()
		must(t, err)
		must(t, q1.Wait(e2)) // otherwise the next fill would overtake the copy
		must(t, wait(t, e2))
		if got := p.Bytes(); got[0] != byte(i) || got[n-1] != byte(i) || bytes.Count(got, []byte{byte(i)}) != n {
			t.Fatalf("round %d: the second queue did not wait for the first", i)
		}
		sync(t, q1)
		e1.Close()
		e2.Close()
	}
	if err := q1.Wait(foreignEvent{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("waiting for an event of another implementation: %v", err)
	}
}

// foreignEvent is an event that belongs to no device.
type foreignEvent struct{}

func (foreignEvent) Done() (bool, error)        { return true, nil }
func (foreignEvent) Wait(context.Context) error { return nil }
func (foreignEvent) Close()                     {}

func testQueueClose(t *testing.T, h *harness) {
	const n = 16 << 20
	d, p := h.device(t, n), h.pinned(t, n)
	q, err := h.dev.OpenQueue(device.QueueOptions{HighPriority: true})
	must(t, err)
	for i := range 8 {
		must(t, q.Fill(mem.All(d), byte(i+1)))
		must(t, q.Copy(mem.All(p), mem.All(d)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, q.Close(ctx))
	if bytes.Count(p.Bytes(), []byte{8}) != n {
		t.Error("the queue was closed before its work was done")
	}
	if err := q.Close(ctx); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := q.Copy(mem.All(d), mem.All(p)); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("copy on a closed queue: %v", err)
	}
	if _, err := q.Record(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("record on a closed queue: %v", err)
	}
}

// testThreads uses one device from many goroutines, and passes queues and events between them. Some
// goroutines are locked to threads that have not used the device before.
func testThreads(t *testing.T, h *harness) {
	const workers, rounds = 8, 12
	type job struct {
		q device.Queue
		e device.Event
	}
	handOver := make(chan job, workers)
	fail := make(chan error, 2*workers)
	var wg gosync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			if w%2 == 0 {
				runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
			}
			q, err := h.dev.OpenQueue(device.QueueOptions{})
			if err != nil {
				fail <- err
				return
			}
			for i := range rounds {
				if err := roundTrip(t.Context(), h.dev, q, byte(w*rounds+i+1)); err != nil {
					fail <- fmt.Errorf("worker %d round %d: %w", w, i, err)
				}
				runtime.Gosched()
			}
			e, err := q.Record()
			if err != nil {
				fail <- err
				return
			}
			handOver <- job{q, e}
		})
		wg.Go(func() {
			if w%2 == 1 {
				runtime.LockOSThread()
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case j := <-handOver:
				err := j.e.Wait(ctx)
				j.e.Close()
				if err := errors.Join(err, roundTrip(ctx, h.dev, j.q, 0x5a), j.q.Close(ctx)); err != nil {
					fail <- err
				}
			case <-ctx.Done():
				fail <- context.Cause(ctx)
			}
		})
	}
	wg.Wait()
	close(fail)
	for err := range fail {
		t.Error(err)
	}
}

// roundTrip copies bytes of value v to its own device memory and back.
func roundTrip(ctx context.Context, d device.Device, q device.Queue, v byte) (err error) {
	const n = 64 << 10
	dev, err := d.Alloc(n, device.AllocOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(dev)) }()
	host, err := d.AllocHost(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(host)) }()
	if err := errors.Join(q.Fill(mem.All(dev), v), q.Copy(mem.All(host), mem.All(dev))); err != nil {
		return err
	}
	e, err := q.Record()
	if err != nil {
		return err
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.Wait(ctx); err != nil {
		return err
	}
	if bytes.Count(host.Bytes(), []byte{v}) != n {
		return fmt.Errorf("bytes of value %#x came back as %#x", v, host.Bytes()[:8])
	}
	return nil
}

// notDone fails the test if e is done now or within a short time.
func notDone(t *testing.T, what string, e device.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), glance)
	defer cancel()
	start := time.Now()
	if err := e.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s: waiting ended with %v after %v", what, err, time.Since(start))
	}
	if done, err := e.Done(); done || err != nil {
		t.Fatalf("%s: done %v, %v", what, done, err)
	}
}
