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

// findFiles returns what there is for a directory, and the notes as one text.
func findFiles(t *testing.T, c profile.Calibration, profiles string, dirs ...string) (*streamfile.Profile, string) {
	t.Helper()
	p, notes, err := profile.Files(t.Context(), dirs, c, profiles, soon)
	if err != nil {
		t.Fatal(err)
	}
	return p, strings.Join(notes, "; ")
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
	if p, notes := findFiles(t, profile.Never, profiles, dir); len(p.Points) > 0 || !strings.Contains(notes, dir) {
		t.Errorf("nothing stored, never: %d points, notes %q", len(p.Points), notes)
	}
	measured, notes := findFiles(t, profile.Once, profiles, dir, filepath.Dir(dir), dir)
	if len(measured.Points) == 0 || notes != "" {
		t.Fatalf("%d points, notes %q", len(measured.Points), notes)
	}
	name := onlyFile(t, profiles) // one file system
	for _, c := range []profile.Calibration{profile.Once, profile.Never} {
		found, notes := findFiles(t, c, profiles, dir)
		if d := cmp.Diff(measured, found); d != "" || notes != "" {
			t.Errorf("%s: notes %q: %s", c, notes, d)
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
	found, _ := findFiles(t, profile.Never, profiles, dir)
	if d := cmp.Diff(measured, found); d != "" {
		t.Errorf("of another boot: %s", d)
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
		if p, notes := findFiles(t, profile.Never, profiles, dir); len(p.Points) > 0 || !strings.Contains(notes, name) {
			t.Errorf("%s, never: %d points, notes %q, which should name the file", what, len(p.Points), notes)
		}
		if what != "empty" && what != "of another version" {
			continue // measuring takes its time
		}
		if p, notes := findFiles(t, profile.Once, profiles, dir); len(p.Points) == 0 || !strings.Contains(notes, name) {
			t.Errorf("%s: %d points, notes %q, which should name the file", what, len(p.Points), notes)
		}
		if p, notes := findFiles(t, profile.Never, profiles, dir); len(p.Points) == 0 || notes != "" {
			t.Errorf("%s, measured anew: %d points, notes %q", what, len(p.Points), notes)
		}
	}
}

// TestFilesGoByDefaults where nothing can be measured or stored, and a note says why.
func TestFilesGoByDefaults(t *testing.T) {
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
		p, notes := findFiles(t, profile.Once, tt.profiles, tt.dir)
		if len(p.Points) > 0 || !strings.Contains(notes, tt.says) || !strings.Contains(notes, "plain defaults") {
			t.Errorf("%s: %d points, notes %q", what, len(p.Points), notes)
		}
	}
	// One that cannot be measured is no matter for the others.
	if p, notes := findFiles(t, profile.Once, profiles, "/proc", dir); len(p.Points) == 0 || !strings.Contains(notes, "/proc") {
		t.Errorf("%d points, notes %q", len(p.Points), notes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := profile.Files(ctx, []string{dir}, profile.Once, t.TempDir(), soon); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestFilesOfTwoFileSystems: one in memory, which may have no O_DIRECT, is measured and kept beside one on a disk.
func TestFilesOfTwoFileSystems(t *testing.T) {
	memory, disk, profiles := testkit.MemoryDir(t), t.TempDir(), t.TempDir()
	var want int
	for _, dir := range []string{memory, disk} {
		c, err := profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles})
		if err != nil || !c.Stored || len(c.Profile.Points) == 0 {
			t.Fatalf("%s: %+v, %v", dir, c, err)
		}
		if want += len(c.Profile.Points); !c.Measured {
			want = len(c.Profile.Points) // they are the same file system here
		}
	}
	if p, notes := findFiles(t, profile.Never, profiles, memory, disk, memory); len(p.Points) != want || notes != "" {
		t.Errorf("%d points, want %d, notes %q", len(p.Points), want, notes)
	}
}

// TestFilesOfADevice: what was measured with a device is kept apart from what was measured without, or with another one.
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

// TestFilesAreMeasuredOnce, however many ask at once.
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
		t.Errorf("error %v, want that there is no directory", err)
	}
}
