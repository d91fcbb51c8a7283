package gdr_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
)

// The doctor's probe, with software NICs and with the machine's NICs.
func TestProbe(t *testing.T) {
	probes(t, gdr.Config{Provider: gdr.Soft, Count: 2}, stream.PathNICSoft, 2)
}

func TestVerbsProbe(t *testing.T) { probes(t, gdr.Config{}, stream.PathNIC, 1) }

func probes(t *testing.T, c gdr.Config, path stream.Path, count int) {
	t.Helper()
	dev, err := sim.Open(sim.Options{HostAddresses: true})
	if err != nil {
		t.Fatal(err)
	}
	nics, err := gdr.Open(dev, c, nil)
	if errors.Is(err, errdefs.ErrNotSupported) && c.Provider != gdr.Soft {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		testkit.Skip(t, "verbs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := doctor.ProbeNICs(t.Context(), dev, nics, path); err != nil {
		t.Error(err)
	}
	chosen := nics.Choices()
	if len(chosen) != count || !strings.Contains(chosen[0].Reason, "peer-memory") {
		t.Errorf("NICs %+v", chosen)
	}
	if err := errors.Join(nics.Close(t.Context()), dev.Close()); err != nil {
		t.Error(err)
	}
}
