package measure

import "slices"

// Quantile returns the q-quantile of v, between the two samples that surround it in proportion (type 7 of Hyndman and
// Fan, "Sample quantiles in statistical packages", 1996), or zero of none. It sorts v.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	at := q * float64(len(v)-1)
	i := int(at)
	if i >= len(v)-1 {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// Median is the 0.5-quantile. It sorts v.
func Median(v []float64) float64 { return Quantile(v, 0.5) }

// LowMedian is the median of durations of which there are few, of an even number the lower one: what disturbs a batch only ever
// makes it longer. v is not empty, and stays as it is.
func LowMedian(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[(len(sorted)-1)/2]
}
