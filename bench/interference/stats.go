package interference

import (
	"math"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

// deviation returns the standard deviation of a sample (n-1 in the denominator).
func deviation(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	m, sum := measure.Mean(v), 0.0
	for _, x := range v {
		sum += (x - m) * (x - m)
	}
	return math.Sqrt(sum / float64(len(v)-1))
}

// interval is a mean with its 95% confidence interval.
type interval struct{ mean, low, high float64 }

// meanInterval returns the mean of v with the confidence interval of Student's t, for independent,
// normally distributed samples. For fewer than two samples the interval is infinite.
func meanInterval(v []float64) interval {
	m := measure.Mean(v)
	if len(v) < 2 {
		return interval{m, math.Inf(-1), math.Inf(1)}
	}
	half := student975(len(v)-1) * deviation(v) / math.Sqrt(float64(len(v)))
	return interval{m, m - half, m + half}
}

// student975Table has the 0.975 quantiles of Student's t by degrees of freedom, starting with 1.
var student975Table = [...]float64{
	12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
	2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
	2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
}

// student975 returns the 0.975 quantile of Student's t. For values beyond the table it uses the
// first two terms of the expansion in 1/df (Abramowitz and Stegun 26.7.5), with an error of at most
// 0.001.
func student975(df int) float64 {
	if df <= len(student975Table) {
		return student975Table[df-1]
	}
	const z = 1.959964
	n := float64(df)
	return z + (z*z*z+z)/(4*n) + (5*z*z*z*z*z+16*z*z*z+3*z)/(96*n*n)
}
