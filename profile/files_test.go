package profile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/profile"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

var soon = streamfile.MeasureOptions{Budget: 100 * time.Millisecond}

// calibrateFiles returns the profile of a directory, either stored or measured now.
func calibrateFiles(t *testing.T, profiles, dir string) *profile.CalibratedFiles {
	t.Helper()
	c, err := profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles, Measure: soon})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func onlyFile(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatalf("stored: %q, %v", names, err)
	}
	return names[0]
}

func TestFiles(t *testing.T) {
	dir, profiles := testkit.MemoryDir(t), filepath.Join(t.TempDir(), "not", "yet", "there")
	measured := calibrateFiles(t, profiles, dir)
	if len(measured.Profile.Points) == 0 || !measured.Measured || measured.Note != "" {
		t.Fatalf("%+v", measured)
	}
	name := onlyFile(t, profiles)
	for _, in := range []string{dir, filepath.Dir(dir)} { // one file system
		found := calibrateFiles(t, profiles, in)
		if d := cmp.Diff(measured.Profile, found.Profile); d != "" || found.Measured || found.Note != "" {
			t.Errorf("%s: %+v: %s", in, found, d)
		}
	}
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, text string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("no %s in\n%s", old, good)
		}
		return strings.Replace(string(good), old, text, 1)
	}
	if err := os.WriteFile(name, []byte(replaced(`"dev": `, `"dev": 7`)), 0o600); err != nil {
		t.Fatal(err)
	}
	found := calibrateFiles(t, profiles, dir)
	if d := cmp.Diff(measured.Profile, found.Profile); d != "" || found.Measured {
		t.Errorf("a profile of another boot: measured again %t: %s", found.Measured, d)
	}
	for what, text := range map[string]string{
		"empty": "", "half": string(good[:len(good)/2]), "of zeroes": string(make([]byte, 100)),
		"of another version": replaced(`"version": 2`, `"version": 99`), "of another format": replaced("kvlane-file-profile", "x"),
		"of another file system": replaced(`"id": "`, `"id": "1`), "of an odd path": replaced(`"posix"`, `"x"`),
		"of no transfers": replaced(`"depth": `, `"depth": -`), "of nothing": `{"format":"kvlane-file-profile","version":2}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c := calibrateFiles(t, profiles, dir); !c.Measured || len(c.Profile.Points) == 0 || !strings.Contains(c.Note, name) {
			t.Errorf("%s: %+v, whose note should name the file", what, c)
		}
		if c := calibrateFiles(t, profiles, dir); c.Measured || c.Note != "" {
			t.Errorf("%s, after that: %+v", what, c)
		}
	}
}

// If a measurement or its storage is not possible, the error contains the reason.
func TestFilesCannotBeCalibrated(t *testing.T) {
	dir, profiles := testkit.MemoryDir(t), t.TempDir()
	file := filepath.Join(profiles, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct{ dir, profiles, says string }{
		"profiles cannot be kept":         {dir, file, file},
		"profiles are kept read-only":     {dir, "/proc", "/proc"},
		"there is no directory":           {filepath.Join(dir, "none"), profiles, "no such file"},
		"it is a file":                    {file, profiles, "not a directory"},
		"nothing can be written":          {"/proc", profiles, "/proc"},
		"a file system where nothing may": {"/sys", profiles, "/sys"},
	} {
		_, err := profile.CalibrateFiles(t.Context(), tt.dir, profile.FileOptions{Dir: tt.profiles, Measure: soon})
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := profile.CalibrateFiles(ctx, dir, profile.FileOptions{Dir: t.TempDir(), Measure: soon}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestFilesOfADevice checks that measurements with a device are stored separately from those
// without one or with another.
func TestFilesOfADevice(t *testing.T) {
	dev, dir, profiles := openGPU(t), testkit.MemoryDir(t), t.TempDir()
	copies, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := copies.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for i, d := range []device.Device{nil, dev, dev.Device, dev} {
		o := soon
		if d != nil {
			o.Stream.Device, o.Stream.Copy = d, copies
		}
		c, err := profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles, Measure: o})
		if err != nil {
			t.Fatal(err)
		}
		of := slices.ContainsFunc(c.Profile.Points, func(p streamfile.Point) bool { return p.Device })
		if c.Measured != (i < 3) || of != (d != nil) || (d == dev) != strings.Contains(c.FileSystem.String(), "device test") {
			t.Errorf("%d: measured %v, of device memory %v: %s", i, c.Measured, of, c.FileSystem)
		}
	}
}

// TestFilesAreMeasuredOnce checks that concurrent calls make one measurement.
func TestFilesAreMeasuredOnce(t *testing.T) {
	dir, profiles := testkit.MemoryDir(t), t.TempDir()
	var wg sync.WaitGroup
	got := make([]*profile.CalibratedFiles, 4)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles, Measure: soon}); err != nil {
				t.Error(err)
			}
		})
	}
	if wg.Wait(); t.Failed() {
		return
	}
	measured := 0
	for _, c := range got {
		if c.Measured {
			measured++
		}
		if !c.Stored || c.Note != "" || c.File != onlyFile(t, profiles) || cmp.Diff(c.Profile, got[0].Profile) != "" {
			t.Errorf("%+v", c)
		}
	}
	if measured != 1 {
		t.Errorf("measured %d times", measured)
	}
	again, err := profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles, Measure: soon, Force: true})
	if err != nil || !again.Measured || !again.Stored || again.Made.Before(got[0].Made) {
		t.Errorf("forced: %+v, %v", again, err)
	}
	if _, err := profile.CalibrateFiles(t.Context(), filepath.Join(dir, "none"), profile.FileOptions{Dir: profiles}); !errors.Is(err, os.ErrNotExist) || errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("error %v, want a missing directory", err)
	}
}
