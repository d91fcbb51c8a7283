package kvlane_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// TestReportedSlowdownLowersTheBudget: what the host program reports reaches what bounds the copies.
func TestReportedSlowdownLowersTheBudget(t *testing.T) {
	e := openEngine(t, testConfig(t))
	before := e.PlanFigures().Limits
	for deadline := time.Now().Add(10 * time.Second); e.PlanFigures().Limits.CTAs >= before.CTAs; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v for ten seconds of reports", before)
		}
		e.ReportSlowdown(50)
	}
}

func TestStreamConfigIsChecked(t *testing.T) {
	for name, s := range map[string]kvlane.StreamConfig{
		"policy":      {Policy: plan.Policy{MaxCTAs: -1}},
		"budget":      {Budget: plan.BudgetOptions{HarmPercent: -3}},
		"calibration": {Calibration: "daily"},
	} {
		c := kvlane.Config{Stream: s}
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want ErrInvalid that names it", name, err)
		}
	}
}
