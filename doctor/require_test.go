package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

// answers examines a machine for every ability that can be required.
func answers(t *testing.T, m Machine) map[string]Finding {
	t.Helper()
	r := Examine(t.Context(), m, Options{Require: Abilities()})
	found := make(map[string]Finding, len(r.Required))
	for _, p := range r.Required {
		if found[p.Name] = p.Available; p.What == "" || p.Available.Answer == "" || p.Available.Answer != Yes && p.Available.Reason == "" {
			t.Errorf("%+v: the description, the answer, or the reason of a No is missing", p)
		}
	}
	if len(found) != len(Abilities()) {
		t.Errorf("%d abilities, and %d names", len(Abilities()), len(found))
	}
	return found
}

func wantAnswers(t *testing.T, found map[string]Finding, answer Answer, names string) {
	t.Helper()
	for name := range strings.FieldsSeq(names) {
		if found[name].Answer != answer {
			t.Errorf("%s: %+v, want %s", name, found[name], answer)
		}
	}
}

func TestRequiredOfAFullMachine(t *testing.T) {
	m := recorded(t, "dgx")
	m.CUDA = twoGPUs
	m.Library = func(string) error { return nil }
	m.IOUring = func() error { return nil }
	found := answers(t, m)
	wantAnswers(t, found, Yes, "cuda calibrated copy-engine kernel staged peer sharing dma-buf nic rdma cufile cufile-direct posix uring direct-io")
	if f := found["rdma"]; !strings.Contains(f.Reason, "port 1") {
		t.Errorf("rdma: %+v, want the port that is up", f)
	}
}

func TestRequiredOfALaptop(t *testing.T) {
	m := recorded(t, "laptop")
	found := answers(t, m)
	wantAnswers(t, found, No, "cuda calibrated copy-engine kernel staged peer sharing dma-buf nic rdma cufile cufile-direct uring")
	wantAnswers(t, found, Yes, "posix locked-memory")

	m.Library = func(string) error { return nil }
	if f := answers(t, m)["rdma"]; f.Answer != No || !strings.Contains(f.Reason, "no RDMA device") {
		t.Errorf("rdma with the library alone: %+v", f)
	}
	m.DirectIO = func(string) error { return errRefused }
	wantAnswers(t, answers(t, m), Unknown, "direct-io")
}

// A port that is down does not satisfy the requirement.
func TestRequiredPortIsActive(t *testing.T) {
	r := Report{RDMA: RDMA{Library: Finding{Answer: Yes}, Devices: []RDMADevice{{Name: "mlx5_0", Ports: []RDMAPort{{Number: 1, State: "DOWN"}}}}}}
	if f := r.activePort(); f.Answer != No || f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}

func TestRequiredIsPrinted(t *testing.T) {
	cuda, err := ParseAbility("cuda")
	if err != nil {
		t.Fatal(err)
	}
	r := Examine(t.Context(), recorded(t, "laptop"), Options{Require: []Ability{cuda}})
	wantText(t, r, "\nRequired\n  cuda               no: ", "needs: an NVIDIA GPU")
	if strings.Contains(text(t, examine(t, recorded(t, "laptop"))), "Required") {
		t.Error("the report has a section on requirements, but there are none")
	}
}

func TestParseAbility(t *testing.T) {
	for _, a := range Abilities() {
		if got, err := ParseAbility(a.Name); err != nil || got.Name != a.Name || strings.Trim(a.Name, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("%q: %v, %v", a.Name, got.Name, err)
		}
	}
	for _, name := range []string{"", "CUDA", "warp"} {
		if _, err := ParseAbility(name); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "cuda, calibrated, ") {
			t.Errorf("%q: error %v, want ErrInvalid that lists the abilities", name, err)
		}
	}
}
