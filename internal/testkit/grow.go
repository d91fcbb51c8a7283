package testkit

import (
	"testing"
	"time"
)

// Grow calls f with a time that doubles until f returns nil. It is for what has to end within a
// time that the test gives it: a slow machine needs a longer one, and a defect exceeds any. The
// test fails with f's last error when the time exceeds a minute.
func Grow(tb testing.TB, d time.Duration, f func(d time.Duration) error) {
	tb.Helper()
	for most := min(time.Minute, Patience()); ; d *= 2 {
		err := f(d)
		if err == nil {
			return
		}
		if d > most {
			tb.Fatalf("within %v: %v", d, err)
		}
		tb.Logf("within %v: %v", d, err)
	}
}
