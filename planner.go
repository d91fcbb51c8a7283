package kvlane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/kernels"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Calibration says when a GPU's copy paths are measured.
type Calibration string

// The ways to come to a profile of the GPU.
const (
	// CalibrateOnce measures a GPU of which no profile is stored, for about two seconds, and stores it.
	CalibrateOnce Calibration = "once"
	// CalibrateNever uses the stored profile, or the built-in one where there is none.
	CalibrateNever Calibration = "never"
)

// ParseCalibration reads "once" or "never".
func ParseCalibration(s string) (Calibration, error) {
	switch c := Calibration(s); c {
	case CalibrateOnce, CalibrateNever:
		return c, nil
	}
	return "", fmt.Errorf("unknown calibration %q: it is once or never: %w", s, errdefs.ErrInvalid)
}

// CalibrateOptions says how Calibrate goes about it. The zero value is the default.
type CalibrateOptions struct {
	// Force measures even if there is a stored profile.
	Force bool
	// Budget is how long measuring should take. Zero: calibrate.DefaultBudget.
	Budget time.Duration
	// Wait is how long to wait for a GPU that others use to become idle, and at least how long for another process that
	// measures. Zero: not at all for others, and plan.DefaultPatience for another process.
	Wait time.Duration
	// Bytes of device memory and of pinned memory to measure with. Zero: calibrate.DefaultBytes, or what there is.
	Bytes int64
	// Dir keeps the profiles. Empty: kvlane/profiles in the user's cache directory.
	Dir string
	// Progress, where it is not nil, is called as measuring goes on.
	Progress func(done, total int, what string)
}

// Calibrated is a profile of a device and where it comes from.
type Calibrated struct {
	Profile plan.Profile
	// File is where profiles of this device are kept; Stored says whether this one is.
	File   string
	Stored bool
	// Note says why a profile that was stored could not be used: it is damaged, or of something else. Empty: there was
	// none, or it could.
	Note string
	// Result is what measuring found, or nil where the profile was stored already.
	Result *calibrate.Result
}

// Calibrate returns the profile of dev's copy paths: the stored one, or else it measures them and stores what it finds.
// A GPU that others use is ErrBusy, after o.Wait; what was measured while somebody came is not stored, nor is what was
// measured of a simulated device. One process of a host measures at a time; the others wait for it, and are told ErrBusy
// if that takes too long.
func Calibrate(ctx context.Context, dev device.Device, o CalibrateOptions) (*Calibrated, error) {
	c := &Calibrated{}
	cache, key := plan.Cache{Dir: o.Dir}, profileKey(dev)
	if o.Wait > plan.DefaultPatience {
		cache.Patience = o.Wait
	}
	measure := func(ctx context.Context) (plan.Profile, bool, error) {
		r, err := calibrate.Run(ctx, dev, pathOpener(dev), calibrate.Options{Key: key, Budget: o.Budget, Wait: o.Wait, Bytes: o.Bytes, Progress: o.Progress})
		if err != nil {
			return plan.Profile{}, false, err
		}
		c.Result, c.Stored = r, r.Storable()
		return r.Profile, c.Stored, nil
	}
	var err error
	if c.File, err = cache.File(key); err != nil {
		return nil, err
	}
	if _, err := cache.Load(key); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		c.Note = fmt.Sprintf("the stored profile cannot be used: %v", err)
	}
	if o.Force {
		c.Profile, err = cache.Make(ctx, measure)
	} else {
		c.Profile, _, err = cache.LoadOrMake(ctx, key, measure)
		c.Stored = c.Stored || c.Result == nil
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// StoredProfile returns the stored profile of dev's copy paths; it measures nothing. dir as CalibrateOptions.Dir. The error
// wraps ErrNotFound where none is stored, ErrCorrupt or ErrMismatch where it cannot be used.
func StoredProfile(dev device.Device, dir string) (*Calibrated, error) {
	cache, key := plan.Cache{Dir: dir}, profileKey(dev)
	file, err := cache.File(key)
	if err != nil {
		return nil, err
	}
	p, err := cache.Load(key)
	if err != nil {
		return nil, err
	}
	return &Calibrated{Profile: p, File: file, Stored: true}, nil
}

func pathOpener(dev device.Device) calibrate.Opener {
	return func(path stream.Path, ctas int) (stream.Stream, error) {
		return streamcopy.Open(dev, streamcopy.Options{Path: path, CTAs: ctas})
	}
}

func profileKey(dev device.Device) plan.Key {
	sum := sha256.New()
	for _, m := range kernels.Modules() {
		sum.Write(m.PTX)
	}
	return calibrate.Key(dev.Info(), hex.EncodeToString(sum.Sum(nil)[:8]), os.DirFS("/sys"))
}

// profile returns what the engine plans with, and what the user should know of it.
func (s *StreamConfig) profile(ctx context.Context, dev device.Device) (p plan.Profile, notes []string, err error) {
	builtin := func(why string) (plan.Profile, []string, error) {
		return plan.Default(), append(notes, "copy paths are chosen by built-in figures: "+why), nil
	}
	if dev.Info().Driver == string(Sim) {
		return plan.Default(), nil, nil
	}
	if s.Calibration == CalibrateNever {
		p, err := (plan.Cache{Dir: s.ProfileDir}).Load(profileKey(dev))
		if err != nil {
			return builtin(err.Error())
		}
		return p, nil, nil
	}
	c, err := Calibrate(ctx, dev, CalibrateOptions{Dir: s.ProfileDir})
	if ctx.Err() != nil {
		return plan.Profile{}, nil, context.Cause(ctx)
	}
	if err != nil {
		return builtin(err.Error())
	}
	if c.Note != "" {
		notes = append(notes, c.Note)
	}
	if !c.Stored {
		return builtin("somebody else used this GPU while it was measured: " + c.Result.Loaded)
	}
	return c.Profile, notes, nil
}
