package kvlane_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/stream"
)

func TestNICConfigReportsEveryProblemAtOnce(t *testing.T) {
	c := testConfig(t)
	gid := -2
	c.Store.GDR, c.Stream.Path = "perhaps", stream.PathNIC
	c.RDMA = gdr.Config{
		Provider: "smartnic", NICs: []string{"mlx5_0", "", "mlx5_0"}, NICsByDevice: [][]string{{"mlx5_4", "mlx5_4"}}, Count: -3, Port: 256, GIDIndex: &gid, MTU: 1500, QueuePairs: -4,
	}
	err := c.Validate()
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("Validate = %v, want ErrInvalid", err)
	}
	for _, want := range []string{
		`"perhaps"`, "path nic", `"smartnic"`, "NIC 1 of the list has no name", `"mlx5_0" is given twice`, `"mlx5_4" is given twice`, "both for this device and by device", "-3", "port 256", "GID index -2", "MTU 1500", "-4",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q:\n%v", want, err)
		}
	}
}

func TestForcedPathAndRequiredNICExcludeEachOther(t *testing.T) {
	c := testConfig(t)
	c.Store.GDR, c.Stream.Path = kvlane.GDRRequire, stream.PathKernel
	if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "path kernel") {
		t.Errorf("Validate = %v, want ErrInvalid that names the path", err)
	}
	c.RDMA.Provider = gdr.Soft // a copy stream copies its bytes on that path
	if err := c.Validate(); err != nil {
		t.Errorf("Validate = %v with the provider in software", err)
	}
}
