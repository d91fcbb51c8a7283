package bench

import "github.com/kvlane/kvlane/stream/copy/measure"

// summary is a mean with two quantiles.
type summary struct{ mean, p50, p99 float64 }

// summarize returns the summary of v. It sorts v.
func summarize(v []float64) summary {
	return summary{mean: measure.Mean(v), p50: measure.Median(v), p99: measure.Quantile(v, 0.99)}
}
