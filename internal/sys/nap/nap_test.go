package nap_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Most naps end when they should: a process that sleeps a millisecond for a short nap makes every wait late by as much.
// The machine may be busy, so a few may be late.
func TestNapIsShort(t *testing.T) {
	const asked = 20 * time.Microsecond
	var took []time.Duration
	for range 100 {
		start := time.Now()
		nap.Sleep(asked)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median < asked {
		t.Errorf("half of the naps of %v took less than %v", asked, median)
	}
	if quarter := took[len(took)/4]; quarter > 500*time.Microsecond {
		t.Errorf("three quarters of naps of %v took more than %v", asked, quarter)
	}
	t.Logf("naps of %v: shortest %v, median %v", asked, took[0], took[len(took)/2])
}
