package nap_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Most naps must not be much too long: if a process sleeps a millisecond instead, every wait is
// that late. On a busy machine the test tries again.
func TestNapIsShort(t *testing.T) {
	const asked = 20 * time.Microsecond
	var took []time.Duration
	for end := time.Now().Add(testkit.Patience()); ; {
		took = naps(asked)
		if took[len(took)/4] <= 500*time.Microsecond {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("three quarters of naps of %v lasted longer than %v", asked, took[len(took)/4])
		}
	}
	if median := took[len(took)/2]; median < asked {
		t.Errorf("half of the naps of %v were shorter than %v", asked, median)
	}
	t.Logf("naps of %v: shortest %v, median %v", asked, took[0], took[len(took)/2])
}

// naps returns the sorted durations of a hundred naps.
func naps(asked time.Duration) (took []time.Duration) {
	for range 100 {
		start := time.Now()
		nap.Sleep(asked)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

func TestPause(t *testing.T) {
	const us = time.Microsecond
	for name, tt := range map[string]struct{ waited, left, want time.Duration }{
		"a few blocks":                      {49 * us, nap.Unexpected, 0},
		"nobody knows":                      {640 * us, nap.Unexpected, 20 * us},
		"for long":                          {time.Second, nap.Unexpected, 200 * us},
		"not for long yet":                  {320 * us, 10 * time.Millisecond, 10 * us},
		"up to where it is near":            {9 * time.Millisecond, 350 * us, 100 * us},
		"near":                              {800 * us, 50 * us, 0},
		"near, of a long one":               {9800 * us, 250 * us, 0},
		"late":                              {850 * us, -50 * us, 0},
		"later than expected":               {960 * us, -160 * us, 30 * us},
		"expected before it was waited for": {60 * us, -time.Second, 60 * us / 32},
	} {
		if got := nap.Pause(tt.waited, tt.left); got != tt.want {
			t.Errorf("%s: %v after %v, expected in %v; want %v", name, got, tt.waited, tt.left, tt.want)
		}
	}
}
