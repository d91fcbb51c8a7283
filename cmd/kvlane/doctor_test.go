package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
)

// doctor distinguishes a missing NIC from one that fails.
func TestDoctorReportsWhyANICIsNotUsed(t *testing.T) {
	for cause, want := range map[error]doctor.Answer{
		errdefs.ErrNotSupported: doctor.No,      // no library, no device, or no path to the GPU's memory
		errdefs.ErrBroken:       doctor.No,      // no port is active
		errdefs.ErrNotFound:     doctor.No,      // a named NIC
		errdefs.ErrCorrupt:      doctor.Unknown, // it copies wrong bytes
	} {
		err := fmt.Errorf("choose NIC for GPU 0: %w", cause)
		if f := nicFinding(nil, err); f.Answer != want || f.Reason != err.Error() || f.Remedy == "" {
			t.Errorf("%v: %+v, want %s with the reason and the requirement", cause, f, want)
		}
	}
	f := nicFinding([]gdr.Choice{{Name: "mlx5_0", Reason: "same PCIe switch"}, {Name: "mlx5_1", Reason: "same PCIe switch"}}, nil)
	if want := "mlx5_0 (same PCIe switch), mlx5_1 (same PCIe switch)"; f.Answer != doctor.Yes || f.Reason != want {
		t.Errorf("%+v, want Yes with %q", f, want)
	}
}

// The exit code reports whether required paths are available. A definite no takes precedence over
// an unknown answer.
func TestDoctorRequires(t *testing.T) {
	is := func(name string, a doctor.Answer) doctor.Path {
		return doctor.Path{Name: name, Available: doctor.Finding{Answer: a}}
	}
	for name, c := range map[string]struct {
		required []doctor.Path
		code     int
		want     string
	}{
		"nothing":       {nil, exitOK, ""},
		"there":         {[]doctor.Path{is("cuda", doctor.Yes), is("posix", doctor.Yes)}, exitOK, ""},
		"not there":     {[]doctor.Path{is("cuda", doctor.No), is("posix", doctor.Yes), is("nic", doctor.No)}, exitMissing, "required and not available: cuda, nic"},
		"not told":      {[]doctor.Path{is("posix", doctor.Yes), is("nic", doctor.Unknown)}, exitUndecided, "could not be determined: nic"},
		"both":          {[]doctor.Path{is("nic", doctor.Unknown), is("cuda", doctor.No)}, exitMissing, "not available: cuda; required, and could not be determined: nic"},
		"not an answer": {[]doctor.Path{is("nic", "")}, exitUndecided, "nic"},
	} {
		err := missing(c.required)
		var coded *codedError
		switch {
		case c.code == exitOK && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.code != exitOK && (!errors.As(err, &coded) || coded.code != c.code || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want exit code %d and %q", name, err, c.code, c.want)
		}
	}
}

// The report is printed even if a required path is missing. An unknown name is reported before any
// check runs.
func TestDoctorRequiresOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	if code, stdout, stderr := execute(t, "doctor", "--dir", dir, "--require", "posix"); code != exitOK || !strings.Contains(stdout, "\nRequired\n  posix  yes\n") {
		t.Errorf("posix: exit code %d, %s\n%s", code, stderr, stdout)
	}
	none := filepath.Join(dir, "none")
	if code, stdout, stderr := execute(t, "doctor", "--dir", none, "--require", "posix"); code != exitUsage || stdout != "" || !strings.Contains(stderr, none+": no such file or directory: check the name") {
		t.Errorf("a missing directory: exit code %d, %s", code, stderr)
	}
	withoutGPU(t)
	code, stdout, stderr := execute(t, "doctor", "--dir", dir, "--require", "cuda", "--json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitMissing || !strings.Contains(stderr, "not available: cuda") {
		t.Errorf("no GPU: exit code %d, %v, %s", code, err, stderr)
	}
	if len(r.Required) != 1 || r.Required[0].Name != "cuda" || r.Required[0].Available.Reason == "" {
		t.Errorf("required features: %+v", r.Required)
	}
	if code, stdout, stderr := execute(t, "doctor", "--require", "posix,warp"); code != exitUsage || stdout != "" || !strings.Contains(stderr, `"warp" is not one of cuda, `) {
		t.Errorf("an unknown name: exit code %d, %s", code, stderr)
	}
}
