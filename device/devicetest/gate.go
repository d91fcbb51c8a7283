package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// handler is a queue that tells its native handle, so that it can play a stream of the host program.
type handler interface{ Handle() uintptr }

// gate opens a queue that is a HostGate, and another that plays the host program's stream.
func (h *harness) gate(t *testing.T) (g device.HostGate, host device.Queue, stream uintptr) {
	t.Helper()
	g, ok := h.queue(t).(device.HostGate)
	host = h.queue(t)
	hd, hasHandle := host.(handler)
	if !ok || !hasHandle {
		testkit.Skip(t, "hostgate", "queues of this device know no streams of the host program, or tell no handle")
	}
	return g, host, hd.Handle()
}

// word returns 64 zero bytes of pinned memory to wait on. Call it before gate, so that it outlives the queues.
func (h *harness) word(t *testing.T) *mem.Region {
	t.Helper()
	return h.pinned(t, 64)
}

// release lets everybody go on who waits for the first two words, at the end of a test that may have failed before it did
// so itself. Call it after gate, so that queues are released before they are closed.
func release(t *testing.T, word *mem.Region) {
	t.Helper()
	t.Cleanup(func() {
		hostmem.StoreUint64(word.Bytes(), 1<<62)
		hostmem.StoreUint64(word.Bytes()[8:], 1<<62)
	})
}

// testWaitValue holds the host program's stream with a word that first is too small and then is reached, by the CPU and
// by another queue, and looks at when the work behind it is done.
func testWaitValue(t *testing.T, h *harness) {
	word, d, p, verdict := h.word(t), h.device(t, 4096), h.pinned(t, 4096), h.pinned(t, 8)
	g, host, stream := h.gate(t)
	release(t, word)
	at := extent(word, 8, 8)

	must(t, host.Fill(mem.All(d), 1))
	before, err := host.Record()
	must(t, err)
	must(t, g.WaitValue(stream, at, 5))
	must(t, host.Fill(mem.All(d), 2))
	must(t, host.Copy(mem.All(p), mem.All(d)))
	after, err := host.Record()
	must(t, err)
	must(t, wait(t, before)) // work before the wait is not held
	notDone(t, "word is 0, wanted 5", after)
	hostmem.StoreUint64(at.Bytes(), 4)
	notDone(t, "word is 4, wanted 5", after)
	if p.Bytes()[0] != 0 {
		t.Error("work behind the wait ran before the word was written")
	}
	hostmem.StoreUint64(at.Bytes(), 6)
	must(t, wait(t, after))
	if bytes.Count(p.Bytes(), []byte{2}) != 4096 {
		t.Error("work behind the wait did not run after it")
	}
	before.Close()
	after.Close()

	must(t, g.WaitValue(stream, at, 5)) // reached already
	sync(t, host)

	// A queue of ours writes the word, as the last step of a transfer.
	const large = 1 << 40
	binary.LittleEndian.PutUint64(verdict.Bytes(), large+3)
	must(t, g.WaitValue(stream, at, large))
	gated, err := host.Record()
	must(t, err)
	notDone(t, "nobody has written the word", gated)
	must(t, g.Copy(at, mem.All(verdict)))
	must(t, wait(t, gated))
	gated.Close()
}

func testWaitValueRefuses(t *testing.T, h *harness) {
	g, host, stream := h.gate(t)
	word := h.pinned(t, 64)
	for name, e := range map[string]mem.Extent{
		"past the end": extent(word, 64, 8),
		"too short":    extent(word, 0, 4),
		"misaligned":   extent(word, 4, 8),
		"no region":    {Len: 8},
	} {
		if err := g.WaitValue(stream, e, 1); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("waiting for a word that is %s: %v", name, err)
		}
	}
	sync(t, host)
}

// testRecordOn lets a queue wait for the host program's stream: a dump that waits for the pages to be computed.
func testRecordOn(t *testing.T, h *harness) {
	const n = 4 << 20
	word, d, p := h.word(t), h.device(t, n), h.pinned(t, n)
	g, host, stream := h.gate(t)
	release(t, word)
	at := extent(word, 0, 8)
	must(t, host.Fill(mem.All(d), 1))
	sync(t, host)
	must(t, g.WaitValue(stream, at, 1)) // the host program is slow
	must(t, host.Fill(mem.All(d), 2))
	e, err := g.RecordOn(stream)
	must(t, err)
	notDone(t, "the host program's work is held", e)
	must(t, g.Wait(e))
	must(t, g.Copy(mem.All(p), mem.All(d)))
	copied, err := g.Record()
	must(t, err)
	notDone(t, "the copy waits for the host program", copied)
	hostmem.StoreUint64(word.Bytes(), 1)
	must(t, wait(t, copied))
	if bytes.Count(p.Bytes(), []byte{2}) != n {
		t.Error("the copy did not wait for the host program's work")
	}
	e.Close()
	copied.Close()
}

// testGatedQueueClose closes a queue whose work is held: the close gives up, changes nothing, and works later.
func testGatedQueueClose(t *testing.T, h *harness) {
	word, d, p := h.word(t), h.device(t, 4096), h.pinned(t, 4096)
	g, _, _ := h.gate(t)
	release(t, word)
	q, err := h.dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	hd, ok := q.(handler)
	if !ok {
		t.Fatal("one queue tells its handle, and another does not")
	}
	must(t, g.WaitValue(hd.Handle(), extent(word, 0, 8), 1))
	must(t, q.Fill(mem.All(d), 7))
	must(t, q.Copy(mem.All(p), mem.All(d)))
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), glance)
		if err := q.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closing a queue whose work is held: %v", err)
		}
		cancel()
	}
	if p.Bytes()[0] != 0 {
		t.Error("held work ran")
	}
	hostmem.StoreUint64(word.Bytes(), 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, q.Close(ctx))
	if bytes.Count(p.Bytes(), []byte{7}) != 4096 {
		t.Error("closing lost work")
	}
}
