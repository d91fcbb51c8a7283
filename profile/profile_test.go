package profile_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// gpu is a simulated device that appears to be a real GPU without other users, however busy this
// machine is.
type gpu struct {
	device.Device
	loaded *string // load by others that a measurement reports
}

func (g gpu) Info() device.Info {
	i := g.Device.Info()
	i.Driver = "test"
	return i
}

func openGPU(t *testing.T) gpu {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	loaded := new(string)
	profile.MeasureBy(t, func(ctx context.Context, _ device.Device, open calibrate.Opener, o calibrate.Options) (*calibrate.Result, error) {
		r, err := calibrate.Run(ctx, dev, open, o)
		if err == nil {
			r.Profile.Source, r.Loaded = calibrate.SourceMeasured, *loaded
		}
		return r, err
	})
	return gpu{dev, loaded}
}

// TestCalibrate checks that a profile is stored unless the device was in use, and that a stored
// profile is not measured again.
func TestCalibrate(t *testing.T) {
	dev := openGPU(t)
	o := profile.Options{Dir: t.TempDir(), Bytes: 1 << 20, Budget: 10 * time.Millisecond}
	calibrate := func() *profile.Calibrated {
		t.Helper()
		c, err := profile.Calibrate(t.Context(), dev, o)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	cache := plan.Cache{Dir: o.Dir}
	*dev.loaded = "somebody came"
	first := calibrate()
	if _, err := cache.Load(first.Profile.Key); first.Result == nil || first.Stored || !errors.Is(err, errdefs.ErrNotFound) {
		t.Fatalf("in use: stored %v, loading returns %v: %+v", first.Stored, err, first.Result)
	}
	*dev.loaded = ""
	first = calibrate()
	if _, err := cache.Load(first.Profile.Key); first.Result == nil || !first.Stored || err != nil {
		t.Fatalf("stored %v, loading returns %v: %+v", first.Stored, err, first.Result)
	}
	if again := calibrate(); again.Result != nil || !again.Stored || !again.Profile.Made.Equal(first.Profile.Made) {
		t.Errorf("measured again: %+v", again.Result)
	}
	o.Force = true
	if forced := calibrate(); forced.Result == nil {
		t.Error("force did not measure")
	}
	// A damaged file is reported and measured again.
	o.Force = false
	if err := os.WriteFile(first.File, []byte(`{"format":"kvlane-profile","version":2,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := calibrate(); c.Result == nil || !strings.Contains(c.Note, first.File) {
		t.Errorf("a damaged profile: note %q, measured %v", c.Note, c.Result != nil)
	}
}

// TestFind checks that Find always returns a usable profile, and adds a note if it is not from this
// machine.
func TestFind(t *testing.T) {
	dev := openGPU(t)
	dir := t.TempDir()
	find := func(c profile.Calibration, dev device.Device) (string, string) {
		t.Helper()
		p, notes, err := profile.Find(t.Context(), dev, nil, c, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		return p.Source, strings.Join(notes, "; ")
	}
	if source, notes := find(profile.Never, dev); source != plan.DefaultSource || !strings.Contains(notes, "built-in") {
		t.Errorf("with nothing stored: source %q, notes %q", source, notes)
	}
	if source, notes := find(profile.Never, dev.Device); source != plan.DefaultSource || notes != "" {
		t.Errorf("simulated: %q, notes %q", source, notes)
	}
	stored := plan.Default()
	stored.Key, stored.Source = profile.Key(dev, nil), "measured elsewhen"
	cache := plan.Cache{Dir: dir}
	if err := cache.Store(stored); err != nil {
		t.Fatal(err)
	}
	for _, c := range []profile.Calibration{profile.Never, profile.Once} {
		if source, notes := find(c, dev); source != stored.Source || notes != "" {
			t.Errorf("stored, %s: %q, notes %q", c, source, notes)
		}
	}
	name, err := cache.File(stored.Key)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string]string{"empty": "", "of zeroes": string(make([]byte, 100)), "of another version": `{"format":"kvlane-profile","version":99}`} {
		if err := os.WriteFile(name, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if source, notes := find(profile.Never, dev); source != plan.DefaultSource || !strings.Contains(notes, name) {
			t.Errorf("%s: %q, notes %q, which should name the file", what, source, notes)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	if source, notes := find(profile.Never, dev); source != plan.DefaultSource || !strings.Contains(notes, name) {
		t.Errorf("a directory in its place: %q, notes %q", source, notes)
	}
}

func TestCalibrateKeepsItsDeadline(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := profile.Calibrate(ctx, openGPU(t), profile.Options{Dir: t.TempDir(), Bytes: 1 << 20})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}
