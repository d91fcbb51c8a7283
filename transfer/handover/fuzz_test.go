package handover

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane/transfer"
)

// Whatever a notification says, it is counted or refused, and what is taken is what was written.
func FuzzMessage(f *testing.F) {
	f.Add(message{arrived, 3, 32, []byte("a request")}.encode())
	f.Add(message{failed, 0, 1, nil}.encode())
	f.Add([]byte("kvh1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Errorf("%q is written as %q", b, m.encode())
		}
		r := NewReceiver(nil, 2)
		for range 3 {
			e := r.note(transfer.Notice{}, m)
			if e.Complete && e.Failed || e.Layer >= e.Layers {
				t.Errorf("%+v", e)
			}
		}
	})
}

// A receiver keeps count of so many requests, and says how many it has forgotten.
func TestForgotten(t *testing.T) {
	r := NewReceiver(nil, 2)
	for _, id := range []string{"a", "b", "c"} {
		if e := r.note(transfer.Notice{}, message{arrived, 0, 2, []byte(id)}); e.Complete {
			t.Errorf("%+v", e)
		}
	}
	if e := r.note(transfer.Notice{}, message{arrived, 1, 2, []byte("c")}); !e.Complete {
		t.Errorf("%+v", e)
	}
	if got := r.Stats().Forgotten; got != 1 {
		t.Errorf("%d are forgotten", got)
	}
}
