package measure

import "slices"

// Mean returns the mean of v, or zero if v is empty.
func Mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

// Quantile returns the q-quantile of v, interpolated between the two nearest samples (type 7 of
// Hyndman and Fan, "Sample quantiles in statistical packages", 1996), or zero if v is empty. It
// sorts v.
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

// Median returns the 0.5-quantile. It sorts v.
func Median(v []float64) float64 { return Quantile(v, 0.5) }

// LowMedian returns the median, or the lower of two middle values. It is for few durations, which
// disturbances can only increase. v must not be empty and is not modified.
func LowMedian(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[(len(sorted)-1)/2]
}
