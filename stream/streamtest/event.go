package streamtest

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// eventStream returns the world's stream as an EventStream, or nil if it does not implement it.
func (w *world) eventStream() stream.EventStream {
	es, ok := w.s.(stream.EventStream)
	if !ok {
		w.Log("the stream has no events")
	}
	return es
}

func testRecord(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 80)
	es := w.eventStream()
	if es == nil {
		return
	}
	r, f := w.region(env.B, 1<<20), w.region(env.A, 1<<20)
	g := newGate()
	w.submit(w.scatter(r, f, 3000, func(int) int64 { return 300 }))
	w.submit(whole(w.region(env.A, 1<<20), r, g))
	type answer struct {
		e   device.Event
		err error
	}
	recorded := make(chan answer, 1)
	go func() {
		e, err := es.Record(deadline(t))
		recorded <- answer{e, err}
	}()
	select {
	case a := <-recorded:
		t.Fatalf("recorded before the batches were issued: %v", a.err)
	default:
	}
	g.open(nil)
	a := <-recorded
	if a.err != nil {
		t.Fatal(a.err)
	}
	defer a.e.Close()
	if err := a.e.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.check() // without waiting for a ticket
}

func testRecordGivesUp(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 81)
	es := w.eventStream()
	if es == nil {
		return
	}
	g := newGate()
	ticket := w.submit(whole(w.region(env.B, 10), w.region(env.A, 10), g))
	cause := errors.New("not today")
	ctx, cancel := context.WithTimeoutCause(t.Context(), pause, cause)
	defer cancel()
	if e, err := es.Record(ctx); e != nil || !errors.Is(err, cause) {
		t.Errorf("record behind a held batch: %v, %v", e, err)
	}
	if err := es.WaitEvent(t.Context(), nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("wait for no event: %v", err)
	}
	g.open(nil)
	w.ok(ticket)
	w.ok(w.submit(&mem.Batch{}))
	w.check()
}

// testWaitEvent copies bytes through three streams that are synchronized only by events.
func testWaitEvent(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 82)
	if w.eventStream() == nil {
		return
	}
	streams := []stream.Stream{w.s, w.open(0), w.open(0)}
	const n = 1 << 20
	r := []*mem.Region{w.region(env.A, n), w.region(env.B, n), w.region(env.B, n), w.region(env.A, n)}
	var events []device.Event
	defer func() {
		for _, e := range events {
			e.Close()
		}
	}()
	for i := range 30 {
		w.s = streams[i%len(streams)]
		es := w.eventStream()
		if i > 0 {
			if err := es.WaitEvent(deadline(t), events[i-1]); err != nil {
				t.Fatal(err)
			}
		}
		w.submit(whole(r[(i+1)%len(r)], r[i%len(r)]))
		e, err := es.Record(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if err := events[len(events)-1].Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.check()
	for _, s := range streams {
		w.s = s
		w.ok(w.submit(&mem.Batch{})) // events must stay open until the batches after them have resolved
	}
}
