package bench

import "github.com/kvlane/kvlane/stream/copy/measure"

func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// summary summarizes samples.
type summary struct{ mean, p50, p99 float64 }

// summarize sorts v.
func summarize(v []float64) summary {
	return summary{mean: mean(v), p50: measure.Median(v), p99: measure.Quantile(v, 0.99)}
}
