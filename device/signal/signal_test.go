package signal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// Package devicetest tests the effect of signals on streams, on the simulated device and on GPUs.

func TestMain(m *testing.M) { testkit.Main(m) }

var patience = testkit.Patience()

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a device with a host stream and a pool.
type rig struct {
	dev    *sim.Device
	host   *sim.Queue
	stream device.HostStream
	pool   *signal.Pool
}

func newRig(t *testing.T, o sim.Options, words int) rig {
	t.Helper()
	dev, err := sim.Open(o)
	must(t, err)
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	host, ok := q.(*sim.Queue)
	if !ok {
		t.Fatalf("queue is a %T", q)
	}
	st, err := dev.AdoptStream(host.Handle())
	must(t, err)
	pool, err := signal.Open(dev, words)
	must(t, err)
	return rig{dev: dev, host: host, stream: st, pool: pool}
}

// close closes everything in the required order.
func (r rig) close(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, r.pool.Close(ctx))
	must(t, r.host.Close(ctx))
	must(t, r.dev.Close())
}

func TestOpenRefuses(t *testing.T) {
	r := newRig(t, sim.Options{}, 1)
	for _, words := range []int{-1, 0, signal.MaxWords + 1} {
		if _, err := signal.Open(r.dev, words); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d words: %v", words, err)
		}
	}
	if _, err := signal.Open(struct{ device.Device }{r.dev}, 1); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("open on a device that cannot adopt streams: %v", err)
	}
	if _, err := r.pool.Take(t.Context(), 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no steps: %v", err)
	}
	r.close(t)
}

// Many loads share few words. Each stream must read the value that its own load wrote.
func TestSignalsOfManyGoroutines(t *testing.T) {
	const users, rounds, words = 8, 50, 3
	r := newRig(t, sim.Options{}, words)
	var wg sync.WaitGroup
	for range users {
		wg.Go(func() {
			q, err := r.dev.OpenQueue(device.QueueOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() {
				if err := q.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			host, ok := q.(*sim.Queue)
			if !ok {
				t.Errorf("queue is a %T", q)
				return
			}
			st, err := r.dev.AdoptStream(host.Handle())
			if err != nil {
				t.Error(err)
				return
			}
			r.use(t, host, st, rounds)
		})
	}
	wg.Wait()
	r.close(t)
}

func (r rig) use(t *testing.T, host device.Queue, st device.HostStream, rounds int) {
	t.Helper()
	loaded, err := r.dev.AllocHost(8)
	if err != nil {
		t.Error(err)
		return
	}
	seen, err := r.dev.AllocHost(8)
	if err != nil {
		t.Error(err)
		return
	}
	for round := range rounds {
		s, err := r.pool.Take(t.Context(), 2)
		if err != nil {
			t.Error(err)
			return
		}
		err = errors.Join(s.Block(st, 1), host.Copy(mem.All(seen), mem.All(loaded)), s.Block(st, 2))
		e, errRecord := host.Record()
		if err = errors.Join(err, errRecord); err != nil {
			t.Error(err)
			s.Set(err)
			return
		}
		loaded.Bytes()[0] = byte(round)
		s.Advance(1)
		if done, _ := e.Done(); done {
			t.Error("the stream did not wait for the second step")
		}
		s.Set(nil)
		if err := e.Wait(t.Context()); err != nil || seen.Bytes()[0] != byte(round) {
			t.Errorf("round %d: read %d, %v", round, seen.Bytes()[0], err)
		}
		e.Close()
	}
	if err := errors.Join(r.dev.Free(loaded), r.dev.Free(seen)); err != nil {
		t.Error(err)
	}
}

// If a call fails, the stream still continues after the signal is set, and the words stay pinned
// until then.
func TestHoldReportsTheNthFailingCall(t *testing.T) {
	for _, op := range []string{sim.OpStore, sim.OpWait, sim.OpRecord} {
		for n := range 3 {
			faults := fault.New(1)
			r := newRig(t, sim.Options{Faults: faults}, 1)
			faults.Add(fault.Nth(op, n))
			s, err := r.pool.Take(t.Context(), 1)
			must(t, err)
			first, second := s.Block(r.stream, 1), s.Block(r.stream, 1)
			reported := errors.Is(first, fault.ErrInjected) || errors.Is(second, fault.ErrInjected)
			// Hold repeats a failed record once.
			if want := op != sim.OpRecord && n < 2; reported != want {
				t.Errorf("%s %d failed: %v, then %v", op, n, first, second)
			}
			s.Set(nil)
			r.close(t)
		}
	}
}

// If the write is enqueued and the wait then fails, the stream still executes the write later. The
// words stay pinned until then.
func TestWordsStayUntilAStreamHasWrittenThem(t *testing.T) {
	faults := fault.New(1)
	r := newRig(t, sim.Options{Faults: faults}, 1)
	gate, err := r.dev.AllocHost(8)
	must(t, err)
	must(t, r.stream.WaitValue(mem.All(gate), 1))
	s, err := r.pool.Take(t.Context(), 1)
	must(t, err)
	faults.Add(fault.Nth(sim.OpWait, 1).Fail(errdefs.ErrNotSupported))
	if err := s.Block(r.stream, 1); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("block with a failing hold: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.pool.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close before the stream has written: %v", err)
	}
	hostmem.StoreUint64(gate.Bytes(), 1)
	must(t, r.host.Close(t.Context()))
	must(t, r.pool.Close(t.Context()))
	must(t, r.dev.Free(gate))
	must(t, r.dev.Close())
}

// If no event can report that a stream has passed a wait, the word stays pinned until a later event
// does.
func TestWordsStayIfReadersAreUnknown(t *testing.T) {
	faults := fault.New(1)
	r := newRig(t, sim.Options{Faults: faults}, 1)
	faults.Add(fault.After(sim.OpRecord, 0))
	s, err := r.pool.Take(t.Context(), 1)
	must(t, err)
	if err := s.Block(r.stream, 1); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("block with a failing hold: %v", err)
	}
	for range 2 {
		if err := r.pool.Close(t.Context()); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("close: %v", err)
		}
	}
	faults.Clear()
	if known, err := s.Verdict(1); !known || !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("verdict after close: known %v, %v", known, err)
	}
	must(t, r.host.Close(t.Context()))
	if err := r.dev.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("the device reports for the pinned words: %v", err)
	}
}

// Closing a pool ends pending calls of Take.
func TestCloseEndsTakes(t *testing.T) {
	r := newRig(t, sim.Options{}, 1)
	_, err := r.pool.Take(t.Context(), 1)
	must(t, err)
	ended := make(chan error)
	go func() { _, err := r.pool.Take(t.Context(), 1); ended <- err }()
	time.Sleep(10 * time.Millisecond)
	must(t, r.pool.Close(t.Context()))
	// The waiting Take may have received the word after the pool was closed.
	if err := <-ended; !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("take: %v", err)
	}
	r.close(t)
}

// few is a device on which kernels stall if more than two streams wait.
type few struct{ *sim.Device }

func (few) WaitLimit() int { return 2 }

// TestDefectWaitingStreamsStarveKernels: the work that ends a wait may need kernels. So a stream
// that would use the last hardware queue is refused, and may wait after others have passed.
func TestDefectWaitingStreamsStarveKernels(t *testing.T) {
	r := newRig(t, sim.Options{}, 1)
	defer r.close(t)
	pool, err := signal.Open(few{r.dev}, 2)
	must(t, err)
	var streams []device.HostStream
	for range 3 {
		q, err := r.dev.OpenQueue(device.QueueOptions{})
		must(t, err)
		defer func() { must(t, q.Close(context.WithoutCancel(t.Context()))) }()
		st, err := r.dev.AdoptStream(q.(*sim.Queue).Handle()) //nolint:errcheck,forcetypeassert // newRig has checked the type
		must(t, err)
		streams = append(streams, st)
	}
	sig, err := pool.Take(t.Context(), 1)
	must(t, err)
	must(t, sig.Block(streams[0], 1))
	must(t, sig.Block(streams[1], 1))
	must(t, sig.Block(streams[1], 1)) // it already waits
	if err := sig.Block(streams[2], 1); !errors.Is(err, errdefs.ErrBusy) {
		t.Fatalf("a third stream that waits: %v", err)
	}
	sig.Set(nil)
	again, err := pool.Take(t.Context(), 1)
	must(t, err)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err = again.Block(streams[2], 1); !errors.Is(err, errdefs.ErrBusy) || time.Now().After(end) {
			break
		}
	}
	must(t, err)
	again.Set(nil)
	must(t, pool.Close(t.Context()))
}
