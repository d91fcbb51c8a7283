package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func near(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if math.Abs(got-want) > by {
		t.Errorf("%s is %v, want %v within %v", what, got, want, by)
	}
}

// The exponential distribution has mean 1 and quantiles -ln(1-q).
func TestSummaryOfAKnownDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float64, 200_000)
	for i := range v {
		v[i] = rng.ExpFloat64()
	}
	s := summarize(v)
	near(t, "mean", s.mean, 1, 0.01)
	near(t, "median", s.p50, math.Ln2, 0.01)
	near(t, "0.99-quantile", s.p99, -math.Log(0.01), 0.1)
}
