package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// handler is a queue with a native handle, so that it can play a stream of the host program.
type handler interface{ Handle() uintptr }

// adopter returns the device as a device.StreamAdopter.
func (h *harness) adopter(t *testing.T) device.StreamAdopter {
	t.Helper()
	a, ok := h.dev.(device.StreamAdopter)
	if !ok {
		testkit.Skip(t, "host-streams", "the device adopts no streams of the host program")
	}
	return a
}

// adopt opens a queue that plays a stream of the host program, and adopts it.
func (h *harness) adopt(t *testing.T) (st device.HostStream, host device.Queue) {
	t.Helper()
	a := h.adopter(t)
	host = h.queue(t)
	hd, ok := host.(handler)
	if !ok {
		testkit.Skip(t, "host-streams", "queues of this device have no handle, so none can act as a stream of the host program")
	}
	st, err := a.AdoptStream(hd.Handle())
	must(t, err)
	return st, host
}

// word returns 64 zero bytes of pinned memory to wait for. Call it before adopt, so that it
// outlives the queues.
func (h *harness) word(t *testing.T) *mem.Region {
	t.Helper()
	return h.pinned(t, 64)
}

// release releases all streams that wait for the first two words, at the end of a test that may
// have failed earlier. Call it after adopt, so that streams are released before their queues are
// closed.
func release(t *testing.T, word *mem.Region) {
	t.Helper()
	t.Cleanup(func() {
		hostmem.StoreUint64(word.Bytes(), 1<<62)
		hostmem.StoreUint64(word.Bytes()[8:], 1<<62)
	})
}

// releaseWord releases all streams that wait for the first word.
func releaseWord(word *mem.Region) { hostmem.StoreUint64(word.Bytes(), 1<<62) }

// testWaitValue makes the host program's stream wait for a word that first is too small and then
// reaches the value, written by the CPU and then by another queue. The test checks when the work
// behind the wait is done.
func testWaitValue(t *testing.T, h *harness) {
	word, d, p, verdict := h.word(t), h.device(t, 4096), h.pinned(t, 4096), h.pinned(t, 8)
	st, host := h.adopt(t)
	release(t, word)
	at := extent(word, 8, 8)

	must(t, host.Fill(mem.All(d), 1))
	before, err := host.Record()
	must(t, err)
	must(t, st.WaitValue(at, 5))
	must(t, host.Fill(mem.All(d), 2))
	must(t, host.Copy(mem.All(p), mem.All(d)))
	after, err := host.Record()
	must(t, err)
	must(t, wait(t, before)) // the wait does not delay earlier work
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

	must(t, st.WaitValue(at, 5)) // already reached
	sync(t, host)

	// A queue of the device writes the word, as the last step of a transfer.
	const large = 1 << 40
	binary.LittleEndian.PutUint64(verdict.Bytes(), large+3)
	must(t, st.WaitValue(at, large))
	gated, err := host.Record()
	must(t, err)
	notDone(t, "the word is unwritten", gated)
	must(t, h.queue(t).Copy(at, mem.All(verdict)))
	must(t, wait(t, gated))
	gated.Close()
}

// testWriteValue makes the host program's stream write a word. The word must not change before the
// stream has reached the write, and must change afterwards.
func testWriteValue(t *testing.T, h *harness) {
	word := h.word(t)
	st, host := h.adopt(t)
	release(t, word)
	at := extent(word, 16, 8)
	must(t, st.WriteValue(at, 1<<40))
	sync(t, host)
	if got := hostmem.LoadUint64(at.Bytes()); got != 1<<40 {
		t.Errorf("the word is %#x once the stream was there, want 1<<40", got)
	}
	must(t, st.WaitValue(extent(word, 0, 8), 1))
	must(t, st.WriteValue(at, 7)) // less than the current value
	blocked, err := host.Record()
	must(t, err)
	notDone(t, "work before the value waits", blocked)
	if got := hostmem.LoadUint64(at.Bytes()); got != 1<<40 {
		t.Errorf("the word is %#x before the stream is there", got)
	}
	releaseWord(word)
	must(t, wait(t, blocked))
	if got := hostmem.LoadUint64(at.Bytes()); got != 7 {
		t.Errorf("the word is %#x once the stream was there, want 7", got)
	}
	blocked.Close()
}

func testWaitValueRefuses(t *testing.T, h *harness) {
	st, host := h.adopt(t)
	word := h.pinned(t, 64)
	for name, e := range map[string]mem.Extent{
		"past the end": extent(word, 64, 8),
		"too short":    extent(word, 0, 4),
		"misaligned":   extent(word, 4, 8),
		"no region":    {Len: 8},
	} {
		if err := st.WaitValue(e, 1); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("waiting for a word that is %s: %v", name, err)
		}
		if err := st.WriteValue(e, 1); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("writing a word that is %s: %v", name, err)
		}
	}
	sync(t, host)
}

// testHostStreamRecord makes a queue wait for the host program's stream, as a dump waits until the
// pages are computed.
func testHostStreamRecord(t *testing.T, h *harness) {
	const n = 4 << 20
	word, d, p := h.word(t), h.device(t, n), h.pinned(t, n)
	st, host := h.adopt(t)
	release(t, word)
	at := extent(word, 0, 8)
	must(t, host.Fill(mem.All(d), 1))
	sync(t, host)
	q := h.queue(t)
	must(t, st.WaitValue(at, 1)) // plays slow work of the host program
	must(t, host.Fill(mem.All(d), 2))
	e, err := st.Record()
	must(t, err)
	notDone(t, "the host program's work is held", e)
	must(t, q.Wait(e))
	must(t, q.Copy(mem.All(p), mem.All(d)))
	copied, err := q.Record()
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

// testBlockedQueueClose closes a queue with work that cannot run yet. Close must time out without
// effect, and succeed later.
func testBlockedQueueClose(t *testing.T, h *harness) {
	word, d, p := h.word(t), h.device(t, 4096), h.pinned(t, 4096)
	a := h.adopter(t)
	release(t, word)
	q, err := h.dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	hd, ok := q.(handler)
	if !ok {
		testkit.Skip(t, "host-streams", "queues of this device have no handle")
	}
	st, err := a.AdoptStream(hd.Handle())
	must(t, err)
	must(t, st.WaitValue(extent(word, 0, 8), 1))
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

func testAdoptRefuses(t *testing.T, h *harness) {
	a := h.adopter(t)
	const perThread = 2 // CU_STREAM_PER_THREAD
	if _, err := a.AdoptStream(perThread); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("adopting the default stream of each thread: %v", err)
	}
	c, ok := h.queue(t).(interface {
		handler
		SetCapturing(on bool)
	})
	if !ok {
		return // only a simulated stream supports this
	}
	word := h.word(t)
	st, err := a.AdoptStream(c.Handle())
	must(t, err)
	c.SetCapturing(true)
	_, errAdopt := a.AdoptStream(c.Handle())
	_, errRecord := st.Record()
	for what, err := range map[string]error{"adopt": errAdopt, "record": errRecord, "wait": st.WaitValue(extent(word, 0, 8), 1)} {
		if !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("%s on a stream that is capturing: %v", what, err)
		}
	}
	c.SetCapturing(false)
	e, err := st.Record()
	must(t, err)
	must(t, wait(t, e))
	e.Close()
}

// parkedStreams is the number of waiting streams of the program, unless the device's limit is
// lower.
const parkedStreams = 32

// testParked makes streams of the host program wait. Meanwhile two queues, opened earlier, do all
// that queues can, alone and both at a time. None of their work may wait for the streams. The
// streams have kernels behind their waits, and one also has copies. There are fewer hardware queues
// for copies than for kernels.
func testParked(t *testing.T, h *harness) {
	const n = 1 << 20
	streams := min(parkedStreams, h.adopter(t).WaitLimit())
	word, d, p := h.word(t), h.device(t, n), h.pinned(t, n)
	q, other := h.prepared(t), h.prepared(t)
	hosts := make([]device.Queue, streams)
	marks, behind, echo := h.pinned(t, int64(streams)), h.device(t, 1), h.pinned(t, 1)
	sts := make([]device.HostStream, streams)
	for i := range hosts {
		sts[i], hosts[i] = h.adopt(t)
	}
	release(t, word)
	for i := range hosts {
		must(t, sts[i].WaitValue(extent(word, 0, 8), 1))
		must(t, hosts[i].Fill(extent(marks, int64(i), 1), 1))
	}
	must(t, hosts[0].Copy(extent(behind, 0, 1), extent(marks, 0, 1)))
	must(t, hosts[0].Copy(extent(echo, 0, 1), extent(behind, 0, 1)))
	within(t, word, func() {
		for round := range 16 {
			must(t, q.Fill(mem.All(d), byte(round+1)))
			if b, ok := q.(device.BatchCopier); ok {
				must(t, b.CopyBatch([]mem.Extent{extent(p, 0, n/2), extent(p, n/2, n/2)}, []mem.Extent{extent(d, 0, n/2), extent(d, n/2, n/2)}))
			}
			must(t, q.Copy(mem.All(p), mem.All(d)))
			h.launchAll(t, q)
			e, err := q.Record()
			must(t, err)
			must(t, other.Wait(e))
			must(t, other.Copy(mem.All(d), mem.All(p)))
			must(t, wait(t, e))
			e.Close()
			sync(t, other)
			if bytes.Count(p.Bytes(), []byte{byte(round + 1)}) != n {
				t.Errorf("round %d: wrong bytes", round)
			}
		}
	})
	if bytes.Count(marks.Bytes(), []byte{0}) != streams || echo.Bytes()[0] != 0 {
		t.Error("a parked stream did not wait")
	}
	hostmem.StoreUint64(word.Bytes(), 1)
	for _, host := range hosts {
		sync(t, host)
	}
	if bytes.Count(marks.Bytes(), []byte{1}) != streams || echo.Bytes()[0] != 1 {
		t.Error("a released stream did not go on")
	}
}

// prepared opens a queue for work that streams of the host program wait for.
func (h *harness) prepared(t *testing.T) device.Queue {
	t.Helper()
	q, err := h.dev.OpenQueue(device.QueueOptions{HighPriority: true, Events: 8})
	must(t, err)
	h.closing(t, q)
	return q
}

// within fails the test if f takes too long, and then releases the waiting streams, because f may
// be in a driver call that would not return otherwise.
func within(t *testing.T, word *mem.Region, f func()) {
	t.Helper()
	stuck := time.AfterFunc(patience/6, func() {
		t.Error("a call waits for streams of the host program that wait for it")
		releaseWord(word)
	})
	defer stuck.Stop()
	f()
}

// launchAll launches every kernel with empty arguments.
func (h *harness) launchAll(t *testing.T, q device.Queue) {
	t.Helper()
	l, ok := q.(device.Launcher)
	if !ok {
		return
	}
	lister, _ := q.(device.KernelLister)
	for name, args := range map[string]int{
		device.KernelCopyList: 2, device.KernelCopyPaged: 7, device.KernelPatternFill: 5, device.KernelPatternCheck: 6,
		device.KernelCopyListSum: 3, device.KernelCopyPagedSum: 8,
		device.KernelCopyParts: 4, device.KernelCopyPartsSum: 4,
	} {
		if lister != nil && !lister.HasKernel(name) {
			continue
		}
		k := device.Kernel{Name: name, NArgs: args, CTAs: 1}
		if args > 6 {
			k.Args[6] = 1 // a direction
		}
		must(t, l.Launch(&k))
	}
}
