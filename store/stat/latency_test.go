package stat

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestLatencyBuckets(t *testing.T) {
	var l Histogram
	for d, want := range map[time.Duration]int{
		-time.Second: 0, 0: 0, 10 * time.Microsecond: 0, 10*time.Microsecond + 1: 1, 50 * time.Microsecond: 2,
		10 * time.Second: len(LatencyBounds) - 1, time.Hour: len(LatencyBounds),
	} {
		before := l.Read()
		l.Observe(d)
		after := l.Read()
		for i := range after.Counts {
			n := int64(0)
			if i == want {
				n = 1
			}
			if got := after.Counts[i] - before.Counts[i]; got != n {
				t.Errorf("%v adds %d to bucket %d, want it in %d", d, got, i, want)
			}
		}
		if got := after.Sum - before.Sum; got != max(0, d) {
			t.Errorf("%v adds %v to the sum", d, got)
		}
	}
	for i, b := range LatencyBounds[1:] {
		if b <= LatencyBounds[i] {
			t.Errorf("bound %v follows %v", b, LatencyBounds[i])
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("an observation allocates %v times", n)
	}
}

// BenchmarkLatency measures the cost of timing a task: two clock readings and an observation.
func BenchmarkLatency(b *testing.B) {
	var l Histogram
	b.Run("observe 50us", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Observe(50 * time.Microsecond)
		}
	})
	b.Run("observe over 10s", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Observe(time.Minute)
		}
	})
	b.Run("with the clock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			begun := time.Now()
			l.Observe(time.Since(begun))
		}
	})
	b.Run("by many at once", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l.Observe(50 * time.Microsecond)
			}
		})
	})
}
