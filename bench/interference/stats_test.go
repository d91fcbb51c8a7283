package interference

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

func near(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if math.Abs(got-want) > by {
		t.Errorf("%s is %v, want %v within %v", what, got, want, by)
	}
}

// The exponential distribution has mean 1, deviation 1 and quantiles -ln(1-q).
func TestSummaryOfAKnownDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float64, 200_000)
	for i := range v {
		v[i] = rng.ExpFloat64()
	}
	near(t, "deviation", deviation(v), 1, 0.02)
	near(t, "mean", measure.Mean(v), 1, 0.01)
}

func TestStudent(t *testing.T) {
	for df, want := range map[int]float64{1: 12.706, 4: 2.776, 19: 2.093, 30: 2.042, 31: 2.0395, 40: 2.0211, 60: 2.0003, 120: 1.9799, 1_000_000: 1.95996} {
		near(t, "quantile of Student's t", student975(df), want, 0.001)
	}
}

// Student's paired example, the hours of sleep gained with one drug over another ("The probable
// error of a mean", 1908). The expected values are from R's t.test.
func TestIntervalOfStudentsSleep(t *testing.T) {
	in := meanInterval([]float64{1.2, 2.4, 1.3, 1.3, 0, 1.0, 1.8, 0.8, 4.6, 1.4})
	near(t, "mean", in.mean, 1.58, 1e-12)
	near(t, "lower bound", in.low, 0.7001142, 1e-4)
	near(t, "upper bound", in.high, 2.4598858, 1e-4)
}

// 95% of the 95% intervals contain the mean of the distribution.
func TestIntervalCoversTheMean(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const runs, mu = 20_000, 0.03
	covered := 0
	v := make([]float64, 20)
	for range runs {
		for i := range v {
			v[i] = mu + 0.01*rng.NormFloat64()
		}
		if in := meanInterval(v); in.low <= mu && mu <= in.high {
			covered++
		}
	}
	near(t, "coverage", float64(covered)/runs, 0.95, 0.005)
	if in := meanInterval([]float64{1}); !math.IsInf(in.high, 1) || !math.IsInf(in.low, -1) {
		t.Errorf("interval of a single sample: %+v", in)
	}
}
