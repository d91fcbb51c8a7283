package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

func TestCalibrate(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--device", "sim", "--memory", "1MiB", "--budget", "20ms", "--profile-dir", dir}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"simulated", "Not stored", "copy-engine", "spread", "opposed", "Measured: microseconds", "Chosen for throughput, h2d, host scattered", "Chosen for background, d2h, host contiguous", "4KiB"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, stdout)
		}
	}

	code, stdout, stderr = execute(t, append(args, "--json", "--force")...)
	var r struct {
		Profile  plan.Profile `json:"profile"`
		File     string
		Stored   bool
		Measured bool
		Choices  []struct {
			Policy, Path string
			Micros       float64 `json:"predicted_us"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if r.Stored || !r.Measured || !strings.HasPrefix(r.File, dir) || len(r.Profile.Models) == 0 {
		t.Errorf("stored %v, measured %v, in %s, %d models", r.Stored, r.Measured, r.File, len(r.Profile.Models))
	}
	// Four policies, two directions, two layouts.
	if want := 16 * len(r.Profile.Sizes) * len(choiceCounts); len(r.Choices) != want {
		t.Errorf("%d choices, want %d", len(r.Choices), want)
	}
	for _, c := range r.Choices {
		if c.Path == "none" || c.Micros <= 0 || c.Policy == "" {
			t.Fatalf("choice %+v", c)
		}
	}
}

func TestCalibrateFiles(t *testing.T) {
	dir, profiles := testkit.MemoryDir(t), t.TempDir()
	args := []string{"calibrate", "--profile-dir", profiles, "--file-dir", dir}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"Profile of file system", "measured in " + dir, "Stored in " + profiles, "path", "direction", "GB/s", "posix  write      host    4KiB "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, stdout)
		}
	}
	code, stdout, stderr = execute(t, append(args, "--file-dir", dir+"/none", "--json")...)
	var r []filesReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitFailure || !strings.Contains(stderr, dir+"/none") {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if len(r) != 1 || !r[0].Stored || len(r[0].Points) == 0 || r[0].Dir != dir {
		t.Errorf("%+v", r)
	}
}

func TestCalibrateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no time":          {[]string{"--budget", "0s"}, exitUsage, "--budget 0s"},
		"no patience":      {[]string{"--wait", "-1s"}, exitUsage, "--wait -1s"},
		"an odd device":    {[]string{"--device", "tpu"}, exitUsage, `"tpu"`},
		"an odd gdr":       {[]string{"--gdr", "often"}, exitUsage, `"often"`},
		"an odd NIC":       {[]string{"--device", "sim", "--gdr", "auto", "--nic", "a,a"}, exitUsage, `"a" is named twice`},
		"no NIC":           {[]string{"--device", "sim", "--gdr", "require", "--nic", "no-such-nic"}, exitFailure, "gdr requires a NIC: "},
		"too little space": {[]string{"--device", "sim", "--memory", "1KiB", "--profile-dir", t.TempDir()}, exitUsage, "1024 bytes"},
	} {
		code, _, stderr := execute(t, append([]string{"calibrate"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, want %d; standard error, which should say %q:\n%s", name, code, c.code, c.says, stderr)
		}
	}
}
