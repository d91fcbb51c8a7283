package devicetest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// testStorageQueueOrder checks that transfers run in order with other work of the queue. The queue
// is blocked until all work is enqueued.
func testStorageQueueOrder(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	const n = 32 << 10
	d, blocked := h.device(t, n), h.blockedQueue(t)
	q := blocked.Queue
	sf := enqueuer(t, st, f)
	warm(t, sf, d, q)
	var all []device.Transfer
	keep := func(x device.Transfer, err error) {
		must(t, err)
		all = append(all, x)
	}
	blocked.block(t)
	within(t, blocked.word, func() {
		must(t, q.Fill(mem.All(d), 1))
		keep(sf.EnqueueWrite(q, mem.All(d), 0))
		must(t, q.Fill(mem.All(d), 2))
		keep(sf.EnqueueWrite(q, mem.All(d), n))
		keep(sf.EnqueueRead(q, extent(d, 0, n/2), 0)) // the bytes written above
		keep(sf.EnqueueWrite(q, mem.All(d), 2*n))
	})
	blocked.release()
	for _, x := range all {
		if moved, err := ended(t, x); err != nil || moved != n && moved != n/2 {
			t.Errorf("moved %d, %v", moved, err)
		}
	}
	copy(want, bytes.Repeat([]byte{1}, n))
	copy(want[n:], bytes.Repeat([]byte{2}, n))
	copy(want[2*n:], bytes.Repeat([]byte{1}, n/2))
	copy(want[2*n+n/2:], bytes.Repeat([]byte{2}, n/2))
	diff(t, "the file", contents(t, f), want)
}

// blockedQueue is a queue that can be blocked. Allocate everything before block: a driver may block
// allocations while a stream waits.
type blockedQueue struct {
	device.Queue
	st   device.HostStream
	word *mem.Region
}

func (h *harness) blockedQueue(t *testing.T) *blockedQueue {
	t.Helper()
	word := h.word(t)
	st, q := h.adopt(t)
	release(t, word)
	return &blockedQueue{q, st, word}
}

// block blocks the queue until release.
func (q *blockedQueue) block(t *testing.T) {
	t.Helper()
	must(t, q.st.WaitValue(extent(q.word, 0, 8), 1))
}

func (q *blockedQueue) release() { releaseWord(q.word) }

// warm moves a few bytes on each queue, so that the library makes its first-use allocations.
func warm(t *testing.T, sf device.StorageEnqueuer, r *mem.Region, queues ...device.Queue) {
	t.Helper()
	for _, q := range queues {
		x, err := sf.EnqueueRead(q, extent(r, 0, 4096), 0)
		must(t, err)
		_, err = ended(t, x)
		must(t, err)
	}
}

// testStorageWordsLive closes transfers before the queue runs them, and then starts as many others.
// Each must move the bytes for which it was enqueued.
func testStorageWordsLive(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	const n, count = 4096, 16
	d, scratch := h.device(t, n*count), h.device(t, n)
	blocked, free := h.blockedQueue(t), h.queue(t)
	sf := enqueuer(t, st, f)
	warm(t, sf, scratch, blocked.Queue, free)
	blocked.block(t)
	within(t, blocked.word, func() {
		for i := range int64(count) {
			x, err := sf.EnqueueRead(blocked.Queue, extent(d, i*n, n), i*(n+1))
			must(t, err)
			if _, done, err := x.Done(); done || err != nil {
				t.Errorf("transfer %d is done: %v", i, err)
			}
			x.Close()
		}
	})
	within(t, blocked.word, func() {
		for i := range int64(count) { // they could reuse the words
			x, err := sf.EnqueueRead(free, mem.All(scratch), i)
			must(t, err)
			if moved, err := ended(t, x); moved != n || err != nil {
				t.Errorf("transfer %d beside a held queue: %d, %v", i, moved, err)
			}
		}
	})
	blocked.release()
	sync(t, blocked.Queue)
	got := h.get(t, blocked.Queue, d, n*count)
	for i := range count {
		diff(t, "bytes of a transfer closed early", got[i*n:(i+1)*n], want[i*(n+1):i*(n+1)+n])
	}
}

// testStorageClose closes files and the storage, while they are in use and afterwards.
func testStorageClose(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	d := h.device(t, 4096)
	blocked := h.blockedQueue(t)
	q := blocked.Queue
	sf := enqueuer(t, st, f)
	warm(t, sf, d, q)
	blocked.block(t)
	var x device.Transfer
	within(t, blocked.word, func() {
		var err error
		x, err = sf.EnqueueRead(q, mem.All(d), 4096)
		must(t, err)
	})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), glance)
		if err := sf.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close a file with a transfer queued: %v", err)
		}
		cancel()
	}
	if err := st.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close the storage with a transfer queued: %v", err)
	}
	_, errRead := sf.Read(mem.All(d), 0)
	_, errWrite := sf.Write(mem.All(d), 0)
	_, errQueued := sf.EnqueueRead(q, mem.All(d), 0)
	_, errRegister := st.Register(int(f.Fd()))
	for _, err := range []error{errRead, errWrite, errQueued, errRegister, st.RegisterBuffer(d), st.UnregisterBuffer(d)} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("use after close: %v", err)
		}
	}
	blocked.release()
	must(t, closeFile(t, sf))
	if n, err := ended(t, x); n != 4096 || err != nil {
		t.Errorf("the transfer whose file was closed: %d, %v", n, err)
	}
	diff(t, "bytes read", h.get(t, q, d, 4096), want[4096:8192])
	must(t, closeFile(t, sf))
	must(t, st.Close())
	must(t, st.Close())
}
