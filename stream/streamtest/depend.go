package streamtest

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// ifUnordered returns d if the stream is unordered. Otherwise it returns nothing, because the order
// of the stream implies d.
func (e *Env) ifUnordered(d mem.Dependency) []mem.Dependency {
	if e.Unordered {
		return []mem.Dependency{d}
	}
	return nil
}

func testDependency(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 30)
	r, f, g, h := w.region(env.B, 100), w.region(env.A, 100), newGate(), newGate()
	gated := w.submit(whole(r, f, g, h))
	// It reads the bytes that gated writes.
	behind := w.submit(whole(w.region(env.A, 100), r, env.ifUnordered(gated)...))
	for _, open := range []*gate{h, g} {
		time.Sleep(pause)
		if resolved(gated) || resolved(behind) {
			t.Fatal("a batch did not wait for its dependencies, or one behind it overtook it")
		}
		open.open(nil)
	}
	w.ok(behind)
	w.ok(w.submit(whole(r, f, g, gated, behind))) // resolved dependencies do not delay it
	w.check()
}

func testFailedDependency(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 31)
	r, f := w.region(env.B, 100), w.region(env.A, 100)
	cause := errors.New("the dump went wrong")
	g, blocked := newGate(), newGate()
	failing := w.submitOnly(whole(r, f, g))
	second := w.submitOnly(whole(r, f, failing))      // fails with the first
	third := w.submit(whole(w.region(env.A, 100), r)) // independent of both
	g.open(cause)
	w.fails(failing, cause)
	w.fails(second, cause)
	w.ok(third)
	if c := failing.Completion(); c.Bytes != 0 || c.Path != stream.PathNone || c.Reason == "" {
		t.Errorf("completion of a batch that never started: %+v", c)
	}
	blocked.open(nil)
	w.fails(w.submitOnly(whole(r, f, blocked, g)), cause) // two resolved dependencies, one failed
	w.check()
}

func testChain(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 32)
	streams := []stream.Stream{w.s, w.open(0), w.open(0)}
	g := newGate()
	r := []*mem.Region{w.region(env.A, 3000), w.region(env.B, 3000), w.region(env.A, 3000), w.region(env.B, 3000)}
	var last mem.Dependency = g
	var ticket *stream.Ticket
	for i := range 60 {
		w.s = streams[i%len(streams)]
		ticket = w.submit(whole(r[(i+1)%len(r)], r[i%len(r)], last))
		last = ticket
	}
	g.open(nil)
	w.ok(ticket)
	w.check()
}
