package rdma_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// TestTimers compares codes and durations with the InfiniBand specification, and checks that a code
// is the smallest one that is long enough.
func TestTimers(t *testing.T) {
	for _, tt := range []struct {
		name     string
		code     uint8
		duration func(uint8) time.Duration
		codeOf   func(time.Duration) uint8
		want     time.Duration
	}{
		{"ack", 0, rdma.AckTimeout, nil, 0},
		{"ack", 1, rdma.AckTimeout, rdma.AckTimeoutCode, 8192 * time.Nanosecond},
		{"ack", 14, rdma.AckTimeout, rdma.AckTimeoutCode, 67_108_864 * time.Nanosecond},
		{"ack", 31, rdma.AckTimeout, rdma.AckTimeoutCode, 8796_093_022_208 * time.Nanosecond},
		{"rnr", 1, rdma.RNRTimer, rdma.RNRTimerCode, 10 * time.Microsecond},
		{"rnr", 12, rdma.RNRTimer, rdma.RNRTimerCode, 640 * time.Microsecond},
		{"rnr", 31, rdma.RNRTimer, rdma.RNRTimerCode, 491_520 * time.Microsecond},
		{"rnr", 0, rdma.RNRTimer, rdma.RNRTimerCode, 655_360 * time.Microsecond},
	} {
		if got := tt.duration(tt.code); got != tt.want {
			t.Errorf("%s code %d is %v, not %v", tt.name, tt.code, got, tt.want)
		}
		if tt.codeOf == nil {
			continue
		}
		for _, d := range []time.Duration{tt.want, tt.want - 1} {
			if got := tt.codeOf(d); got != tt.code {
				t.Errorf("%s code of %v is %d, not %d", tt.name, d, got, tt.code)
			}
		}
	}
	if got := rdma.AckTimeoutCode(24 * time.Hour); got != 31 {
		t.Errorf("more than the longest is code %d", got)
	}
}
