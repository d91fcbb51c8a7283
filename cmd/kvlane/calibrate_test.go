package main

import (
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

func TestCalibrate(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--device", "sim", "--memory", "1MiB", "--budget", "20ms", "--profile-dir", dir}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if lines := strings.Count(stdout, "\n"); lines > 14 {
		t.Errorf("the short report has %d lines:\n%s", lines, stdout)
	}
	if !regexp.MustCompile(`(?m)^ +h2d +1( +(copy-engine|kernel|staged)){5}$`).MatchString(stdout) {
		t.Errorf("the short report does not name the fastest paths:\n%s", stdout)
	}
	short := []string{"simulated", "Not stored: profiles of simulated devices are not stored", "One large copy: ", "Fastest path by size of scattered blocks", "--full shows"}
	full := []string{"Not stored", "copy-engine", "spread", "opposed", "Time of one copy", "Chosen for throughput, h2d, host scattered", "Chosen for background, d2h, host contiguous", "4 KiB"}
	for extra, wants := range map[string][]string{"": short, "--full": full} {
		report := stdout
		if extra != "" {
			_, report, _ = execute(t, append(args, extra)...)
		}
		for _, want := range wants {
			if !strings.Contains(report, want) {
				t.Errorf("the report with %q lacks %q:\n%s", extra, want, report)
			}
		}
		for _, never := range []string{"-0.0", "NUMA node -1", "unknown link"} {
			if strings.Contains(report, never) {
				t.Errorf("the report with %q contains %q:\n%s", extra, never, report)
			}
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
	// Four policies, two directions and two host arrangements.
	if want := 16 * len(r.Profile.Sizes) * len(choiceCounts); len(r.Choices) != want {
		t.Errorf("%d choices, want %d", len(r.Choices), want)
	}
	for _, c := range r.Choices {
		if c.Path == "none" || c.Micros <= 0 || c.Policy == "" {
			t.Fatalf("choice %+v", c)
		}
	}
}

// calibrated returns a report with fixed measurements of a GPU.
func calibrated(t *testing.T) *calibrateReport {
	t.Helper()
	c := &profile.Calibrated{
		Profile: plan.Default(), File: "/home/u/.cache/kvlane/profiles/b71d6144d99ee696b783738f4e7bf239.json", Stored: true,
		Result: &calibrate.Result{
			Took: 2150 * time.Millisecond, Bytes: 1 << 30, Loaded: "12% of its time by others",
			Missing: []calibrate.Missing{{Path: stream.PathNIC, Reason: "libibverbs.so.1 not found"}},
		},
	}
	p := &c.Profile
	p.Source, p.Made = "measured", time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	p.Key = plan.Key{GPU: "GPU-7", Driver: "13.0", PCI: "0000:1b:00.0", LinkSpeed: "32.0 GT/s", LinkWidth: 16, NUMANode: -1, Kernels: "5131cd7b03d5ffff"}
	p.Models = slices.Clone(p.Models)
	for i := range p.Models {
		p.Models[i].Points = 60 + i
	}
	r, err := newCalibrateReport(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCalibrateForPeople(t *testing.T) {
	r := calibrated(t)
	presenttest.Check(t, "calibrate", *rewrite, func(w io.Writer) error { return r.WriteText(w, false) })
	r.Choices = r.Choices[:2*len(r.Profile.Sizes)*len(choiceCounts)] // two tables of 16
	presenttest.Check(t, "calibrate-full", *rewrite, func(w io.Writer) error { return r.WriteText(w, true) })
	files := &filesReport{FileSystem: profile.FileSystem{Type: "ext4", Source: "/dev/nvme0n1", Magic: 0xef53, ID: "52e8", Kernel: "6.18"}, Dir: "/mnt/nvme", File: "/home/u/files.json", Stored: true, Made: r.Profile.Made, Direct: &streamfile.Comparison{Bytes: 1 << 20, Direct: 2.5, Pinned: 12.5}, Points: []streamfile.Point{
		{Path: "posix", Write: true, Bytes: 4096, Depth: 4, GBps: 0.125},
		{Path: "posix", Bytes: 1 << 20, Depth: 4, GBps: 12.5, Device: true},
		{Path: "posix", Write: true, Bytes: 1 << 20, Depth: 4, GBps: 2.5},
	}}
	presenttest.Check(t, "calibrate-files", *rewrite, files.WriteText)
}

func TestCalibrateFiles(t *testing.T) {
	dir, profiles := testkit.MemoryDir(t), t.TempDir()
	args := []string{"calibrate", "--profile-dir", profiles, "--file-dir", dir}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"The paths to files of file system", "measured in " + dir, "Stored in " + profiles, "path   way", "GB/s", "posix  write  host ", "4 KiB"} {
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

// With a device, calibrate compares cuFile with pinned memory and stores both in the profile.
func TestCalibrateFilesOfADevice(t *testing.T) {
	args := []string{"calibrate", "--profile-dir", t.TempDir(), "--file-dir", t.TempDir(), "--device", "sim", "--budget", "4s"}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK || !regexp.MustCompile(`--direct auto uses (cuFile|pinned memory) here for blocks of 1 MiB; measured: cuFile reads `).MatchString(stdout) {
		t.Fatalf("exit code %d: %s; output:\n%s", code, stderr, stdout)
	}
	_, stdout, stderr = execute(t, append(args, "--json")...)
	var r []filesReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r) != 1 || r[0].Direct == nil || r[0].Direct.Direct <= 0 || r[0].Direct.Pinned <= 0 || !r[0].Stored {
		t.Fatalf("%+v, %v: %s", r, err, stderr)
	}
}

func TestCalibrateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no time":          {[]string{"--budget", "0s"}, exitUsage, "--budget 0s"},
		"no patience":      {[]string{"--wait", "-1s"}, exitUsage, "--wait -1s"},
		"an odd device":    {[]string{"--device", "tpu"}, exitUsage, `"tpu"`},
		"an odd gdr":       {[]string{"--gdr", "often"}, exitUsage, `"often"`},
		"an odd NIC":       {[]string{"--device", "sim", "--gdr", "auto", "--nic", "a,a"}, exitUsage, `"a" is given twice`},
		"no NIC":           {[]string{"--device", "sim", "--gdr", "require", "--nic", "no-such-nic"}, exitFailure, "gdr requires a NIC: "},
		"one path":         {[]string{"--device", "host"}, exitUsage, "--device host has one path"},
		"too little space": {[]string{"--device", "sim", "--memory", "1KiB", "--profile-dir", t.TempDir()}, exitUsage, "1024 bytes"},
	} {
		code, _, stderr := execute(t, append([]string{"calibrate"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, want %d; standard error, which should contain %q:\n%s", name, code, c.code, c.want, stderr)
		}
	}
}
