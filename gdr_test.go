package kvlane_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

func TestNICConfigReportsEveryProblemAtOnce(t *testing.T) {
	c := testConfig(t)
	gid := -2
	c.Store.GDR, c.Stream.Path = "perhaps", stream.PathNIC
	c.RDMA = kvlane.RDMAConfig{
		Provider: "smartnic", NICs: []string{"mlx5_0", "", "mlx5_0"}, NICsByDevice: [][]string{{"mlx5_4", "mlx5_4"}}, Count: -3, Port: 256, GIDIndex: &gid, MTU: 1500, QueuePairs: -4,
	}
	err := c.Validate()
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("Validate = %v, want ErrInvalid", err)
	}
	for _, want := range []string{
		`"perhaps"`, "path nic", `"smartnic"`, "NIC 1 of those named has no name", `"mlx5_0" is named twice`, `"mlx5_4" is named twice`, "both for this device and by device", "-3", "port 256", "GID index -2", "MTU 1500", "-4",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestForcedPathAndRequiredNICExcludeEachOther(t *testing.T) {
	c := testConfig(t)
	c.Store.GDR, c.Stream.Path = kvlane.GDRRequire, stream.PathKernel
	if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "path kernel") {
		t.Errorf("Validate = %v, want ErrInvalid that names the path", err)
	}
	c.RDMA.Provider = kvlane.ProviderSoft // whose bytes a copy stream moves, by that path
	if err := c.Validate(); err != nil {
		t.Errorf("Validate = %v with the provider in software", err)
	}
}

// NICs that cannot be tried are not taken, nor are those that are hardly faster.
func TestNICsThatAreNotTaken(t *testing.T) {
	e := openEngine(t, testConfig(t))
	cause := errors.New("no port is active any more")
	e.ChooseBroken(t.Context(), cause)
	if notes := strings.Join(e.Notes(), "\n"); !strings.Contains(notes, cause.Error()) {
		t.Errorf("notes %q do not say why", notes)
	}
	if e.NICs() != nil {
		t.Errorf("NICs: %+v", e.NICs())
	}
	for nic, want := range map[float64]bool{0: false, 40: false, 41: false, 43: true} {
		if got := kvlane.NICIsFaster(nic, 40); got != want {
			t.Errorf("%v GB/s by NIC against 40: taken %v", nic, got)
		}
	}
}

// NICs that cannot be used any more are an error where they are required, and under auto a note, once.
func TestNICsThatFailLater(t *testing.T) {
	c := testConfig(t)
	c.Store.GDR = kvlane.GDRAuto
	e := openEngine(t, c)
	notes := len(e.Notes())
	for range 2 {
		s, err := e.OpenStoreStreamWith(errdefs.ErrBroken)
		if err != nil {
			t.Fatalf("auto: %v", err)
		}
		if _, ok := s.(stream.EventStream); !ok {
			t.Errorf("auto: %T is no copy stream", s)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := e.Notes(); len(got) != notes+1 || !strings.Contains(got[notes], errdefs.ErrBroken.Error()) {
		t.Errorf("notes %q, want one more that tells why", got)
	}
	kvlane.SetGDR(e, kvlane.GDRRequire)
	if s, err := e.OpenStoreStreamWith(errdefs.ErrBroken); !errors.Is(err, errdefs.ErrBroken) || s != nil {
		t.Errorf("require: %v, %v, want the NICs' error", s, err)
	}
}
