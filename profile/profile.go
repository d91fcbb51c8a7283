// Package profile has the measured profiles of this machine's devices, by which copy paths are chosen: stored ones, or those that it
// measures where none is stored.
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

// Calibration says when a GPU's copy paths are measured.
type Calibration string

// The ways to come to a profile of the GPU.
const (
	// Once measures a GPU of which no profile is stored, for about two seconds, and stores it.
	Once Calibration = "once"
	// Never uses the stored profile, or the built-in one where there is none.
	Never Calibration = "never"
)

// ParseCalibration reads "once" or "never".
func ParseCalibration(s string) (Calibration, error) {
	switch c := Calibration(s); c {
	case Once, Never:
		return c, nil
	}
	return "", fmt.Errorf("unknown calibration %q: it is once or never: %w", s, errdefs.ErrInvalid)
}

// Options says how Calibrate goes about it. The zero value is the default.
type Options struct {
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
	// NICs are measured beside the device's own paths, and the profile is kept apart from those of other NICs, or of none. What
	// NICs in software take is not stored. Nil: there are none.
	NICs NICs
	// Progress, where it is not nil, is called as measuring goes on.
	Progress func(done, total int, what string)
}

// NICs are RDMA NICs that copies may travel by, as gdr.NICs.
type NICs interface {
	// Identity names the NICs with all that what they take depends on.
	Identity() string
	Carrier() *streamcopy.Carrier
	Register(regions ...*mem.Region) error
	Unregister(ctx context.Context, regions ...*mem.Region) error
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

// measureDevice is replaced in tests: no machine that runs them is idle, and measuring judges that.
var measureDevice = calibrate.Run

// Calibrate returns the profile of dev's copy paths: the stored one, or else it measures them and stores what it finds.
// A GPU that others use is ErrBusy, after o.Wait; what was measured while somebody came is not stored, nor is what was
// measured of a simulated device. One process of a host measures at a time; the others wait for it, and are told ErrBusy
// if that takes too long.
func Calibrate(ctx context.Context, dev device.Device, o Options) (*Calibrated, error) {
	if p := streamcopy.OnlyPath(dev); p != stream.PathNone {
		return nil, fmt.Errorf("measure the copy paths of %s: the CPU copies, by the path %s alone: %w", dev.Info().Name, p, errdefs.ErrNotSupported)
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

// Stored returns the stored profile of dev's copy paths, without NICs; it measures nothing. dir is as Options.Dir. The error
// wraps ErrNotFound where none is stored, ErrCorrupt or ErrMismatch where it cannot be used.
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

// measured returns what measuring has to know of the NICs, which may be nil.
func measured(nics NICs) *calibrate.NIC {
	if nics == nil {
		return nil
	}
	return &calibrate.NIC{Path: nics.Carrier().Path, Memory: nics}
}

// pathOpener opens streams of dev on one path each, by nics too unless they are nil.
func pathOpener(dev device.Device, nics NICs) calibrate.Opener {
	var nic *streamcopy.Carrier
	if nics != nil {
		nic = nics.Carrier()
	}
	return func(path stream.Path, ctas int) (stream.Stream, error) {
		return streamcopy.Open(dev, streamcopy.Options{Path: path, CTAs: ctas, NIC: nic})
	}
}

// Key returns what a profile of dev is stored under, of its own paths and of nics, which may be nil.
func Key(dev device.Device, nics NICs) plan.Key {
	sum := sha256.Sum256(kernels.PTX())
	k := calibrate.Key(dev.Info(), hex.EncodeToString(sum[:8]), os.DirFS("/sys"))
	if nics != nil {
		k.NIC = nics.Identity()
	}
	return k
}

// HasFigures reports whether p has what copies by that path take.
func HasFigures(p *plan.Profile, path stream.Path) bool {
	return slices.ContainsFunc(p.Models, func(m plan.Model) bool { return m.Path == path })
}

// Find returns what to plan dev's copies with, measured or not as c says and kept in dir, and what the user should know of it. It has
// figures of nics, which may be nil, or a note says why not; where there is nothing else it is the built-in profile. The error is
// that of ctx.
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
		note("copies go without a NIC: " + err.Error())
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

// What a simulated device, which is measured each time anew, is measured with.
const (
	simDriver = "sim"
	simBytes  = 16 << 20
	simBudget = 100 * time.Millisecond
)

// find returns the stored profile, or measures it if c has it so. The note says what was wrong with a stored one.
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
		return plan.Profile{}, got.Note, fmt.Errorf("somebody else used this GPU while it was measured: %s: %w", got.Result.Loaded, errdefs.ErrBusy)
	}
	return got.Profile, got.Note, nil
}
