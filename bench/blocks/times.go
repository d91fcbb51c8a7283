package blocks

import (
	"math/bits"
	"time"
)

// stepBits is log2 of the number of histogram buckets for each power of two of nanoseconds.
// Percentiles therefore have an error of at most 1/32.
const stepBits = 5

// times is a histogram of durations. It is not safe for concurrent use. The zero value is empty.
type times struct {
	counts [(64 - stepBits) << stepBits]int64
	total  int64
}

func (t *times) add(d time.Duration) {
	n := uint64(max(d, 0))
	shift := max(bits.Len64(n)-stepBits-1, 0)
	t.counts[uint64(shift)<<stepBits+n>>shift]++
	t.total++
}

func (t *times) merge(o *times) {
	for i, n := range &o.counts {
		t.counts[i] += n
	}
	t.total += o.total
}

// micros returns the quantile part of the durations in microseconds, or zero if there are none.
func (t *times) micros(part float64) float64 {
	left := int64(part * float64(t.total))
	for i, n := range &t.counts {
		if left -= n; left < 0 {
			shift := max(i>>stepBits-1, 0)
			return float64((i-shift<<stepBits+1)<<shift-1) / 1e3
		}
	}
	return 0
}
