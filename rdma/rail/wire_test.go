package rail

import (
	"encoding/json"
	"math"
	"testing"
)

// FuzzEndpoint checks that the values of an accepted endpoint fit their fields.
func FuzzEndpoint(f *testing.F) {
	for _, e := range []Endpoint{{QP: 17, PSN: 1, GID: make([]byte, 16), MTU: 5, Reads: 16}, {QP: 1 << 24, MTU: 6}} {
		b, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Endpoint
		if json.Unmarshal(b, &e) != nil || e.Validate() != nil {
			return
		}
		if e.QP>>24 != 0 || e.PSN>>24 != 0 || len(e.GID) != 16 || e.MTU < 1 || e.MTU > 5 {
			t.Errorf("%+v", e)
		}
	})
}

func TestKeyBounds(t *testing.T) {
	for _, tt := range []struct {
		addr uint64
		n    int64
		ok   bool
	}{{0, 0, true}, {math.MaxUint64, 0, true}, {math.MaxUint64, 1, false}, {math.MaxUint64 - 1<<40, 1 << 40, true}, {0, -1, false}} {
		if err := (Key{Addr: tt.addr}).Validate(tt.n); (err == nil) != tt.ok {
			t.Errorf("%d bytes at %#x: %v", tt.n, tt.addr, err)
		}
	}
}
