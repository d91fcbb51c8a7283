package testkit

import (
	"testing"
	"time"
)

// Grow calls f with a time that doubles until f returns nil. Use it for operations with a deadline.
// A slow machine passes with a longer deadline; a defect fails with every one. The test fails with
// f's last error when the next time would exceed a minute, or Patience.
func Grow(tb testing.TB, d time.Duration, f func(d time.Duration) error) {
	tb.Helper()
	for most := min(time.Minute, Patience()); ; d *= 2 {
		err := f(d)
		if err == nil {
			return
		}
		if 2*d > most {
			tb.Fatalf("within %v: %v", d, err)
		}
		tb.Logf("within %v: %v", d, err)
	}
}
