package devicetest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// pool opens a pool of signals and closes it at the end of the test. Call it after adopt, so that
// the pool is closed before the streams that wait on it.
func (h *harness) pool(t *testing.T, words int) *signal.Pool {
	t.Helper()
	h.adopter(t)
	p, err := signal.Open(h.dev, words)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	return p
}

func take(t *testing.T, p *signal.Pool, steps int) *signal.Signal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := p.Take(ctx, steps)
	must(t, err)
	return s
}

// verdict fails the test if a signal reports a different result for a step.
func verdict(t *testing.T, s *signal.Signal, step int, known bool, want error) {
	t.Helper()
	if k, err := s.Verdict(step); k != known || !errors.Is(err, want) {
		t.Errorf("verdict of step %d: known %v, %v; want %v, %v", step, k, err, known, want)
	}
}

// testSignalSteps loads layer by layer into pages that the host program's stream reads, with a wait
// for each layer. The load fails before the last layer.
func testSignalSteps(t *testing.T, h *harness) {
	const layers, n = 4, 64 << 10
	d, out, from := h.device(t, layers*n), h.pinned(t, layers*n), h.pinned(t, layers*n)
	st, host := h.adopt(t)
	q := h.queue(t)
	p := h.pool(t, 1)
	s := take(t, p, layers)
	must(t, q.Fill(mem.All(d), 0xaa)) // contents of the pages before the load
	sync(t, q)
	passed := make([]device.Event, layers)
	for i := range layers {
		must(t, s.Block(st, i+1))
		must(t, host.Copy(extent(out, int64(i)*n, n), extent(d, int64(i)*n, n)))
		var err error
		passed[i], err = host.Record()
		must(t, err)
	}
	for i := range layers - 1 {
		notDone(t, "the layer has not come", passed[i])
		if n := s.Wanted(); n != i+1 {
			t.Errorf("a stream that waits for layer %d has come to %d", i, n-1)
		}
		verdict(t, s, i+1, false, nil)
		fillBytes(from.Bytes()[i*n:][:n], byte(i+1))
		must(t, q.Copy(extent(d, int64(i)*n, n), extent(from, int64(i)*n, n)))
		sync(t, q)
		s.Advance(i + 1)
		must(t, wait(t, passed[i]))
		verdict(t, s, i+1, true, nil)
		if got := out.Bytes()[i*n:][:n]; bytes.Count(got, []byte{byte(i + 1)}) != n {
			t.Errorf("layer %d: the program read old bytes", i)
		}
		s.Advance(i) // the signal has already advanced further
	}
	notDone(t, "the last layer has not come", passed[layers-1])
	s.Set(errdefs.ErrCorrupt)
	s.Set(nil)
	must(t, wait(t, passed[layers-1]))
	if n := s.Wanted(); n != 0 {
		t.Errorf("after Set, Wanted returns %d layers", n)
	}
	verdict(t, s, layers, true, errdefs.ErrCorrupt)
	verdict(t, s, 1, true, nil)
	must(t, s.Block(st, layers)) // it no longer waits
	sync(t, host)
	for _, step := range []int{0, layers + 1} {
		if err := s.Block(st, step); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("waiting for step %d of %d: %v", step, layers, err)
		}
	}
	for _, e := range passed {
		e.Close()
	}
}

// testSignalReuse reuses the only word of a pool for a second signal, before a stream has reached
// its wait for the first.
func testSignalReuse(t *testing.T, h *harness) {
	word, marks := h.word(t), h.pinned(t, 64)
	st, host := h.adopt(t)
	waiting, waitingHost := h.adopt(t)
	release(t, word)
	p := h.pool(t, 1)
	first := take(t, p, 3)
	must(t, waiting.WaitValue(extent(word, 0, 8), 1)) // plays much earlier work of the stream
	must(t, first.Block(waiting, 3))
	must(t, waitingHost.Fill(extent(marks, 0, 1), 1))
	passed, err := waitingHost.Record()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), glance)
	defer cancel()
	if _, err := p.Take(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("taking a signal when none is left: %v", err)
	}
	first.Set(nil)
	second := take(t, p, 2)
	if n := second.Wanted(); n != 0 {
		t.Errorf("no stream has reached a wait, and Wanted returns %d steps", n)
	}
	first.Set(errdefs.ErrCorrupt)
	first.Advance(3)
	must(t, second.Block(st, 1))
	must(t, host.Fill(extent(marks, 1, 1), 1))
	blocked, err := host.Record()
	must(t, err)
	notDone(t, "only the signal before was set", blocked)
	if n := second.Wanted(); n != 1 {
		t.Errorf("streams have come to %d steps, want 1", n)
	}
	verdict(t, second, 1, false, nil)
	verdict(t, first, 3, true, nil)
	notDone(t, "the stream has not come to its wait", passed)
	releaseWord(word)
	must(t, wait(t, passed))
	if n := second.Wanted(); n != 0 {
		t.Errorf("a stream was late for the earlier signal, and Wanted returns %d steps", n)
	}
	notDone(t, "only the signal before was set", blocked)
	second.Advance(1)
	must(t, wait(t, blocked))
	second.Set(nil)
	passed.Close()
	blocked.Close()
}

// testSignalPoolClose closes a pool while streams wait. The streams must continue, and the words
// must stay until then.
func testSignalPoolClose(t *testing.T, h *harness) {
	word, marks := h.word(t), h.pinned(t, 64)
	st, host := h.adopt(t)
	waiting, waitingHost := h.adopt(t)
	release(t, word)
	p := h.pool(t, 4)
	one, other := take(t, p, 1), take(t, p, 2)
	must(t, one.Block(st, 1))
	must(t, host.Fill(extent(marks, 0, 1), 1))
	must(t, waiting.WaitValue(extent(word, 0, 8), 1))
	must(t, other.Block(waiting, 2))
	must(t, waitingHost.Fill(extent(marks, 1, 1), 1))
	other.Advance(1)
	ctx, cancel := context.WithTimeout(t.Context(), glance)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing while a stream will still look at its word: %v", err)
	}
	sync(t, host)
	verdict(t, one, 1, true, errdefs.ErrClosed)
	verdict(t, other, 1, true, nil)
	verdict(t, other, 2, true, errdefs.ErrClosed)
	if _, err := p.Take(t.Context(), 1); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("taking a signal of a closed pool: %v", err)
	}
	must(t, one.Block(st, 1)) // already set
	releaseWord(word)
	must(t, p.Close(t.Context()))
	must(t, p.Close(t.Context()))
	sync(t, waitingHost)
	if got := marks.Bytes(); got[0] != 1 || got[1] != 1 {
		t.Error("a stream did not go on")
	}
}
