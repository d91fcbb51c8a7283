package blockio

import (
	"bytes"
	"testing"
)

// seeds adds all vectors to a fuzz target.
func seeds(f *testing.F) {
	f.Helper()
	for _, b := range vectors(f) {
		f.Add(b)
	}
}

func FuzzRequest(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packer
		var r Request
		if r.Decode(b, &wide) == nil {
			again, err := p.Request(nil, &r, &wide)
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("%+v is packed as %x, not %x: %v", r, again, b, err)
			}
		}
	})
}

func FuzzResult(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packer
		var r Result
		if r.Decode(b, &wide) == nil {
			again, err := p.Result(nil, &r, &wide)
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("%+v is packed as %x, not %x: %v", r, again, b, err)
			}
			for _, q := range requests() {
				_ = r.Answers(q)
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Hello
		if h.Decode(b) == nil {
			if again, err := h.Append(nil); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%+v is packed as %x, not %x: %v", h, again, b, err)
			}
		}
		var r HelloResult
		if r.Decode(b) == nil {
			if again, err := r.Append(nil); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%+v is packed as %x, not %x: %v", r, again, b, err)
			}
		}
	})
}
