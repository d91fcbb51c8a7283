// Package profile provides measured profiles of devices and file systems. Streams use them to
// choose copy paths. The package loads a stored profile, or measures and stores one.
package profile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/kernels"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Calibration determines when a GPU's copy paths are measured.
type Calibration string

// The values of Calibration.
const (
	// Once measures a GPU that has no stored profile for about two seconds and stores the result.
	Once Calibration = "once"
	// Never uses the stored profile, or built-in values if none is stored.
	Never Calibration = "never"
)

// ParseCalibration parses "once" or "never".
func ParseCalibration(s string) (Calibration, error) {
	switch c := Calibration(s); c {
	case Once, Never:
		return c, nil
	}
	return "", fmt.Errorf("unknown calibration %q: must be once or never: %w", s, errdefs.ErrInvalid)
}

// Options are the options of Calibrate. The zero value has the defaults.
type Options struct {
	// Force measures even if a profile is stored.
	Force bool
	// Budget is the target duration of the measurement. Zero: calibrate.DefaultBudget.
	Budget time.Duration
	// Wait is the maximum time to wait until a GPU that other processes use is idle. Zero: do not
	// wait. It is also the maximum wait for another process that is measuring, if it is longer than
	// plan.DefaultPatience.
	Wait time.Duration
	// Bytes is the amount of device memory and of pinned memory used for the measurement. Zero:
	// calibrate.DefaultBytes, or the available memory if that is less.
	Bytes int64
	// Dir is the directory of the profiles. Empty: kvlane/profiles in the user's cache directory.
	Dir string
	// NICs are measured in addition to the device's own paths. Each set of NICs has a separate
	// profile. Results of software NICs are not stored. Optional.
	NICs NICs
	// Progress is called during the measurement. Optional.
	Progress func(done, total int, what string)
}

// NICs are RDMA NICs for copies. *gdr.NICs implements it.
type NICs interface {
	// Identity describes the NICs and all properties that affect their copy times.
	Identity() string
	Carrier() *streamcopy.Carrier
	Register(regions ...*mem.Region) error
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// Calibrated is the profile of a device and its origin.
type Calibrated struct {
	Profile plan.Profile
	// File is the path of the device's profile. Stored reports whether this profile is stored
	// there.
	File   string
	Stored bool
	// Note is the reason for which a stored profile could not be used: it is damaged or does not
	// match. Otherwise it is empty.
	Note string
	// Result is the result of the measurement. Nil if the profile was already stored.
	Result *calibrate.Result
}

// measureDevice is a variable so that tests can replace it: calibrate.Run requires an idle machine.
var measureDevice = calibrate.Run

// Calibrate returns the profile of dev's copy paths. If none is stored, it measures and stores one.
// It returns ErrBusy if other processes still use the GPU after o.Wait. The profile is not stored
// if another process started to use the GPU during the measurement, or if the device is simulated.
// Only one process of a host measures at a time. The others wait, and get ErrBusy if that takes too
// long.
func Calibrate(ctx context.Context, dev device.Device, o Options) (*Calibrated, error) {
	if p := streamcopy.OnlyPath(dev); p != stream.PathNone {
		return nil, fmt.Errorf("measure the copy paths of %s: the CPU copies, only by path %s: %w", dev.Info().Name, p, errdefs.ErrNotSupported)
	}
	c := &Calibrated{}
	cache, key := plan.Cache{Dir: o.Dir}, Key(dev, o.NICs)
	if o.Wait > plan.DefaultPatience {
		cache.Patience = o.Wait
	}
	measure := func(ctx context.Context) (plan.Profile, bool, error) {
		run := calibrate.Options{Key: key, Budget: o.Budget, Wait: o.Wait, Bytes: o.Bytes, Progress: o.Progress, NIC: measured(o.NICs)}
		r, err := measureDevice(ctx, dev, pathOpener(dev, o.NICs), run)
		if err != nil {
			return plan.Profile{}, false, err
		}
		c.Result, c.Stored = r, r.Storable() && (o.NICs == nil || o.NICs.Carrier().Path != stream.PathNICSoft)
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

// Stored returns the stored profile of dev's copy paths without NICs. It never measures. dir is
// like Options.Dir. The error wraps ErrNotFound if none is stored, and ErrCorrupt or ErrMismatch if
// it cannot be used.
func Stored(dev device.Device, dir string) (*Calibrated, error) {
	cache, key := plan.Cache{Dir: dir}, Key(dev, nil)
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

// measured converts nics to a calibrate.NIC. It returns nil if nics is nil.
func measured(nics NICs) *calibrate.NIC {
	if nics == nil {
		return nil
	}
	return &calibrate.NIC{Path: nics.Carrier().Path, Memory: nics}
}

// pathOpener returns a function that opens single-path streams of dev. nics may be nil.
func pathOpener(dev device.Device, nics NICs) calibrate.Opener {
	var nic *streamcopy.Carrier
	if nics != nil {
		nic = nics.Carrier()
	}
	return func(path stream.Path, ctas int) (stream.Stream, error) {
		return streamcopy.Open(dev, streamcopy.Options{Path: path, CTAs: ctas, NIC: nic})
	}
}

// Key returns the key of dev's profile with nics, which may be nil.
func Key(dev device.Device, nics NICs) plan.Key {
	sum := sha256.Sum256(kernels.PTX())
	k := calibrate.Key(dev.Info(), hex.EncodeToString(sum[:8]), os.DirFS("/sys"))
	if nics != nil {
		k.NIC = nics.Identity()
	}
	return k
}

// HasFigures reports whether p has measurements of the path.
func HasFigures(p *plan.Profile, path stream.Path) bool {
	return slices.ContainsFunc(p.Models, func(m plan.Model) bool { return m.Path == path })
}

// Find returns a profile for dev's copies and notes for the user. If c permits it, it measures dev
// and stores the profile in dir. The profile includes nics, which may be nil; if it does not, a
// note has the reason. If no profile is available, it returns the built-in one. The only error is
// the cause of ctx.
func Find(ctx context.Context, dev device.Device, nics NICs, c Calibration, dir string) (p plan.Profile, notes []string, err error) {
	note := func(n string) {
		if n != "" {
			notes = append(notes, n)
		}
	}
	if nics != nil {
		p, n, err := find(ctx, dev, nics, c, dir)
		switch {
		case ctx.Err() != nil:
			return plan.Profile{}, nil, context.Cause(ctx)
		case err == nil && HasFigures(&p, nics.Carrier().Path):
			note(n)
			return p, notes, nil
		case err == nil:
			err = fmt.Errorf("the profile of %s has no figures of it: %w", p.Key, errdefs.ErrNotSupported)
		}
		note("copies do not use a NIC: " + err.Error())
	}
	if dev.Info().Driver == simDriver || streamcopy.OnlyPath(dev) != stream.PathNone {
		return plan.Default(), notes, nil
	}
	p, n, err := find(ctx, dev, nil, c, dir)
	if ctx.Err() != nil {
		return plan.Profile{}, nil, context.Cause(ctx)
	}
	note(n)
	if err != nil {
		note("copy paths are chosen by built-in figures: " + err.Error())
		return plan.Default(), notes, nil
	}
	return p, notes, nil
}

// A simulated device is measured each time, with less memory and a shorter budget.
const (
	simDriver = "sim"
	simBytes  = 16 << 20
	simBudget = 100 * time.Millisecond
)

// find returns the stored profile. If there is none and c permits it, it measures one. note is the
// reason for which a stored profile could not be used, or empty.
func find(ctx context.Context, dev device.Device, nics NICs, c Calibration, dir string) (p plan.Profile, note string, err error) {
	if c == Never {
		p, err := (plan.Cache{Dir: dir}).Load(Key(dev, nics))
		return p, "", err
	}
	o := Options{Dir: dir, NICs: nics}
	if dev.Info().Driver == simDriver {
		o.Bytes, o.Budget = simBytes, simBudget
	}
	got, err := Calibrate(ctx, dev, o)
	switch {
	case err != nil:
		return plan.Profile{}, "", err
	case got.Result != nil && got.Result.Loaded != "":
		return plan.Profile{}, got.Note, fmt.Errorf("another process used this GPU during the measurement: %s: %w", got.Result.Loaded, errdefs.ErrBusy)
	}
	return got.Profile, got.Note, nil
}
