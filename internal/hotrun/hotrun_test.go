package hotrun_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/hotrun"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// load sends requests at a rate for some seconds: a part of them is of run 1, and the rest of many
// others. part returns the part of run 1 by its replicas. It returns the replicas at the end, and
// the largest number of replicas of another run.
func load(c *hotrun.Counter, now *time.Time, rate, seconds int, part func(replicas int) float64) (replicas, others int) {
	random := rand.New(rand.NewPCG(3, 4))
	replicas = 1
	for range rate * seconds {
		*now = now.Add(time.Second / time.Duration(rate))
		if random.Float64() < part(replicas) {
			replicas = c.Count(1, *now)
		} else {
			others = max(others, c.Count(2+random.Uint32N(1e6), *now))
		}
	}
	return replicas, others
}

func constant(f float64) func(int) float64 { return func(int) float64 { return f } }

func TestHotRuns(t *testing.T) {
	for _, c := range []struct {
		name string
		rate int
		part func(replicas int) float64
		want int
	}{
		{"a run like others", 10000, constant(1e-4), 1},
		{"a small share", 10000, constant(0.05), 1},
		{"a large share of few requests", 1000, constant(0.2), 1},
		{"a large share", 10000, constant(0.3), hotrun.MaxReplicas},
		// The server has 1/replicas of the run's requests: 0.2, 0.1, 0.05.
		{"a share that replicas reduce", 10000, func(k int) float64 { return 0.2 / float64(k) }, 4},
	} {
		now := time.Unix(1000, 0)
		got, others := load(hotrun.New(0), &now, c.rate, 10, c.part)
		if got != c.want || others > 1 {
			t.Errorf("%s: %d replicas, and at most %d of other runs, want %d and 1", c.name, got, others, c.want)
		}
	}
}

func TestRunsCoolDown(t *testing.T) {
	c, now := hotrun.New(100), time.Unix(1000, 0)
	if got, _ := load(c, &now, 1000, 8, constant(0.5)); got != hotrun.MaxReplicas {
		t.Fatalf("%d replicas of a hot run", got)
	}
	if got, _ := load(c, &now, 1000, 8, constant(0.01)); got != 1 {
		t.Errorf("%d replicas of a run that is hot no more, want 1", got)
	}
	load(c, &now, 1000, 8, constant(0.5))
	now = now.Add(time.Hour)
	if got := c.Count(1, now); got > hotrun.MaxReplicas/2 {
		t.Errorf("%d replicas after an hour without requests", got)
	}
}

func BenchmarkCount(b *testing.B) {
	c, now := hotrun.New(0), time.Unix(1000, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Count(uint32(i*7919), now)
	}
}
