package blocks

import (
	"math/bits"
	"time"
)

// Each power of two of nanoseconds has this many counts in times, so a percentile is off by at most
// one part in 32.
const stepBits = 5

// times counts operations by their time. It is not safe for concurrent use. The zero value is
// empty.
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

// micros returns the time in microseconds that the part of the operations does not exceed, or zero
// if there are none.
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
