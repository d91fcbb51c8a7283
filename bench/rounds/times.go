package rounds

import (
	"math/bits"
	"time"
)

// stepBits is log2 of the number of histogram buckets for each power of two of nanoseconds.
// Percentiles therefore have an error of at most 1/32.
const stepBits = 5

// Times is a histogram of durations. It is not safe for concurrent use. The zero value is empty.
type Times struct {
	counts [(64 - stepBits) << stepBits]int64
	total  int64
}

// Add adds a duration. Negative durations count as zero.
func (t *Times) Add(d time.Duration) {
	n := uint64(max(d, 0))
	shift := max(bits.Len64(n)-stepBits-1, 0)
	t.counts[uint64(shift)<<stepBits+n>>shift]++
	t.total++
}

// Merge adds the durations of o.
func (t *Times) Merge(o *Times) {
	for i, n := range &o.counts {
		t.counts[i] += n
	}
	t.total += o.total
}

// Total returns the number of durations.
func (t *Times) Total() int64 { return t.total }

// Micros returns the quantile part of the durations in microseconds, or zero if there are none.
func (t *Times) Micros(part float64) float64 {
	left := int64(part * float64(t.total))
	for i, n := range &t.counts {
		if left -= n; left < 0 {
			shift := max(i>>stepBits-1, 0)
			return float64((i-shift<<stepBits+1)<<shift-1) / 1e3
		}
	}
	return 0
}
