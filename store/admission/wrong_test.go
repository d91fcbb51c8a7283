package admission_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/store/admission"
)

// One wrong time of a step does not refuse hits forever, although all later steps are long.
func TestOneWrongTime(t *testing.T) {
	const ms = time.Millisecond
	p := admission.Prefix{
		Blocks: 8, Tokens: 8192, Rest: 100,
		Source: func(int) admission.Source { return admission.Files },
		Bytes:  func(int) int64 { return 8 << 20 },
	}
	for _, wrong := range []struct {
		tokens int64
		took   time.Duration
	}{{8192, time.Microsecond}, {8192, 25 * ms}, {1, 10 * time.Minute}} {
		var m admission.Model
		for range 9 {
			m.Computed(8, 20*ms)
			m.Computed(512, 22*ms)
			m.Computed(8192, 250*ms)
			m.Loaded(admission.Bytes{admission.Files: 1 << 30}, time.Second)
		}
		if n := m.Worth(p); n != p.Blocks {
			t.Fatalf("%d of %d blocks are worth loading: %+v", n, p.Blocks, m.Stats())
		}
		m.Computed(wrong.tokens, wrong.took)
		for range 1000 {
			m.Computed(8192, 250*ms)
		}
		if n := m.Worth(p); n != p.Blocks {
			t.Errorf("after a step of %d tokens in %v, and 1000 others, %d of %d blocks are worth loading: %+v",
				wrong.tokens, wrong.took, n, p.Blocks, m.Stats())
		}
	}
}
