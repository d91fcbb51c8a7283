package handover

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane/transfer"
)

// Any notification is either decoded or refused. An accepted one encodes to the same bytes.
func FuzzMessage(f *testing.F) {
	f.Add(message{arrived, 3, 32, 7, []byte("a request")}.encode())
	f.Add(message{failed, 0, 1, 1 << 63, nil}.encode())
	f.Add([]byte("kvh2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Errorf("%q is written as %q", b, m.encode())
		}
		r := NewReceiver(nil, 2)
		over := false
		for range 3 {
			e, ok := r.record(transfer.Notice{}, m)
			if e.Complete && e.Failed || e.Layer >= e.Layers || ok == over {
				t.Errorf("%+v, to be reported: %v", e, ok)
			}
			over = over || e.Complete || e.Failed
		}
	})
}

// A receiver tracks a limited number of requests, and counts those that it drops.
func TestForgotten(t *testing.T) {
	r := NewReceiver(nil, 2)
	for _, id := range []string{"a", "b", "c"} {
		if e, ok := r.record(transfer.Notice{}, message{arrived, 0, 2, 0, []byte(id)}); e.Complete || !ok {
			t.Errorf("%+v", e)
		}
	}
	if e, ok := r.record(transfer.Notice{}, message{arrived, 1, 2, 0, []byte("c")}); !e.Complete || !ok {
		t.Errorf("%+v", e)
	}
	// Finished requests are dropped before unfinished ones.
	r.record(transfer.Notice{}, message{arrived, 0, 2, 0, []byte("d")})
	if e, ok := r.record(transfer.Notice{}, message{arrived, 1, 2, 0, []byte("b")}); !e.Complete || !ok {
		t.Errorf("%+v", e)
	}
	if got := r.Stats().Forgotten; got != 1 {
		t.Errorf("%d are forgotten", got)
	}
}

// TestDefectRequestOfAnotherAttempt checks two requests with the same identifier. Layers of the
// failed first request must not count for the second. A failed or complete request produces no more
// events.
func TestDefectRequestOfAnotherAttempt(t *testing.T) {
	r := NewReceiver(nil, 0)
	hear := func(w kind, layer int, number uint64, complete, reported bool) {
		t.Helper()
		e, ok := r.record(transfer.Notice{}, message{w, layer, 2, number, []byte("a")})
		if e.Complete != complete || ok != reported {
			t.Errorf("%+v, to be reported: %v", e, ok)
		}
	}
	hear(arrived, 0, 1, false, true) // otherwise a missing notification would not be noticed
	hear(arrived, 1, 2, false, true)
	hear(failed, 0, 1, false, true)
	hear(arrived, 1, 1, false, false)
	hear(arrived, 0, 2, true, true)
	hear(arrived, 0, 2, false, false)
	hear(failed, 0, 3, false, true)
	hear(arrived, 0, 3, false, false)
	if got := r.Stats().Late; got != 3 {
		t.Errorf("%d were late", got)
	}
}
