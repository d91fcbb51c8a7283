package main

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
)

// The doctor tells a NIC that is not there from one that fails.
func TestDoctorSaysWhyANICIsNotUsed(t *testing.T) {
	for cause, want := range map[error]doctor.Answer{
		errdefs.ErrNotSupported: doctor.No,      // no library, no device, no way to the GPU's memory
		errdefs.ErrBroken:       doctor.No,      // no port is up
		errdefs.ErrNotFound:     doctor.No,      // a NIC that was named
		errdefs.ErrCorrupt:      doctor.Unknown, // it copies other bytes
	} {
		err := fmt.Errorf("choose NIC for GPU 0: %w", cause)
		if f := nicFinding(nil, err); f.Answer != want || f.Reason != err.Error() || f.Remedy == "" {
			t.Errorf("%v: %+v, want %s with the reason and what is needed", cause, f, want)
		}
	}
	f := nicFinding([]gdr.Choice{{Name: "mlx5_0", Reason: "same PCIe switch"}, {Name: "mlx5_1", Reason: "same PCIe switch"}}, nil)
	if want := "mlx5_0 (same PCIe switch), mlx5_1 (same PCIe switch)"; f.Answer != doctor.Yes || f.Reason != want {
		t.Errorf("%+v, want a yes that says %q", f, want)
	}
}
