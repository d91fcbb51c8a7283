package testkit

import (
	"testing"
	"time"
)

// Grow calls f with a deadline that doubles until f returns nil. Use it for operations with a
// deadline: on a slow machine a longer deadline succeeds, but a bug fails with every deadline. The
// test fails with f's last error when the next deadline would exceed a minute or Patience.
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
