package kvlane

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// Validate returns every problem of the configuration. It does not read ConfigFile; Open validates
// the values of the file.
func (c *Config) Validate() error {
	groups, groupsErr := c.groups()
	return errors.Join(
		groupsErr, c.Device.validate(), c.Stream.validate(), c.RDMA.Validate(), c.validateGDR(), c.validateDirect(), c.Store.validate(groups.formats),
		checkMetricsAddr(c.MetricsAddr),
	)
}

// validate returns every problem of the settings of the store and its tiers. formats is empty if
// the length of blocks is unknown.
func (s *StoreConfig) validate(formats block.Formats) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	missing := s.CacheBytes == 0 && !s.passing()
	switch {
	case missing && formats != nil:
		bad("store.cache_bytes is not given: the cache holds at least %d blocks of %d bytes", minSlots, formats.MaxImageBytes())
	case missing:
		bad("store.cache_bytes is not given")
	case formats != nil && s.slotBytes(formats) < minSlots*formats.MaxImageBytes():
		bad("store.cache_bytes: the cache of %d bytes does not hold %d blocks of %d bytes", s.CacheBytes, minSlots, formats.MaxImageBytes())
	}
	if s.CacheBytes > MaxCacheBytes {
		bad("store.cache_bytes: a cache of %d bytes is more than %d", s.CacheBytes, int64(MaxCacheBytes))
	}
	for _, set := range settings.TierSettings() {
		if n, ok := set.Value(s).(int64); ok && n < 0 {
			bad("%s is negative: %d", set.Key, n)
		}
	}
	if tiers, err := s.tiers(); err != nil {
		errs = append(errs, err)
	} else {
		for _, t := range settings.DurableTiers() {
			errs = append(errs, s.validateTier(&t, formats, slices.Contains(tiers, t.Name)))
		}
	}
	if s.Verify > store.VerifyFill {
		bad("unknown verify policy %d", s.Verify)
	}
	if a := s.Admission; a != "" && a != AdmissionAuto && a != AdmissionAlways {
		bad("unknown choice %q for admission: must be auto or always", a)
	}
	for _, n := range []struct {
		name    string
		v, most int
	}{{"readers", s.Readers, store.MaxWorkers}, {"writers", s.Writers, store.MaxWorkers}, {"tasks", s.Tasks, store.MaxTasks}} {
		if n.v < 0 || n.v > n.most {
			bad("%d %s are not 0 to %d", n.v, n.name, n.most)
		}
	}
	if s.LeaseMax < 0 {
		bad("the longest lease, %v, is negative", s.LeaseMax)
	}
	if s.WaitMax < 0 {
		bad("the longest wait, %v, is negative", s.WaitMax)
	}
	return errors.Join(errs...)
}

// validateTier returns every problem of a durable tier. If it is not in the pipeline, its settings
// are errors.
func (s *StoreConfig) validateTier(t *settings.Tier, formats block.Formats, there bool) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	place := t.Place()
	switch {
	case there && !place.Given(s):
		bad("pipeline %q has a %s tier, but %s is not given", s.Pipeline, t.Name, place.Key)
	case there && formats != nil:
		return t.Config(s, settings.TierBlocks{Formats: formats}).Validate()
	case !there:
		for i := range t.Settings {
			switch set := &t.Settings[i]; {
			case !set.Given(s):
			case s.Pipeline != "":
				bad("%s is given, but pipeline %q has no %s tier", set.Key, s.Pipeline, t.Name)
			default:
				bad("%s is given, but no %s tier is configured: give %s", set.Key, t.Name, place.Key)
			}
		}
	}
	return errors.Join(errs...)
}

func (s *StreamConfig) validate() error {
	o := streamcopy.Options{StagingBytes: s.StagingBytes, Policy: s.Policy}
	errs := []error{o.Validate(), s.Budget.Validate()}
	if s.Path != stream.PathNone && !slices.Contains(copyPaths(), s.Path) {
		var names []string
		for _, p := range copyPaths() {
			names = append(names, p.String())
		}
		errs = append(errs, fmt.Errorf("path %s is not accepted here: must be one of %s; for NICs use gdr require (--gdr require): %w",
			s.Path, strings.Join(names, ", "), errdefs.ErrInvalid))
	}
	if s.Calibration != "" {
		_, err := profile.ParseCalibration(string(s.Calibration))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// validateGDR returns every conflict of the settings of NICs.
func (c *Config) validateGDR() error {
	var errs []error
	if c.Store.GDR != "" {
		_, err := ParseGDR(string(c.Store.GDR))
		errs = append(errs, err)
	}
	if p := c.Stream.Path; p != stream.PathNone && c.Store.GDR == GDRRequire && c.RDMA.Provider != gdr.Soft {
		errs = append(errs, fmt.Errorf("path %s is forced, and gdr requires a NIC: %w", p, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// copyPaths returns the paths of a copy stream between a device and its host, which all loads and
// dumps use.
func copyPaths() []stream.Path { return stream.Paths(stream.MovedByDevice) }
