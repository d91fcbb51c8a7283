package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// tiers returns the names of the pipeline's tiers, fast to slow.
func (s *StoreConfig) tiers() ([]string, error) {
	switch {
	case s.Pipeline != "":
		return store.ParsePipeline(s.Pipeline)
	case len(s.Dirs) > 0:
		return []string{store.TierCache, store.TierFile}, nil
	case s.LogDir != "":
		return []string{store.TierCache, store.TierLog}, nil
	}
	return []string{store.TierCache}, nil
}

// passing reports whether blocks only pass through pinned memory.
func (s *StoreConfig) passing() bool {
	tiers, err := s.tiers()
	return err == nil && tiers[0] != store.TierCache
}

// slotBytes returns the size of the pinned memory of the cache, or of the window without a cache.
func (s *StoreConfig) slotBytes(formats block.Formats) int64 {
	if s.CacheBytes == 0 && s.passing() {
		return max(DefaultWindowBytes, minSlots*formats.MaxImageBytes())
	}
	return s.CacheBytes
}

// fileTier returns the configuration of the file tier.
func (s *StoreConfig) fileTier(formats block.Formats) file.Config {
	return file.Config{
		Dirs: s.Dirs, SharedBound: s.SharedBound, Formats: formats, Fsync: s.Fsync, MaxBytes: s.FileBytes, DirBytes: s.DirBytes, ReadOnly: s.ReadOnly,
	}
}

// validateFile returns every problem of the file tier. Without a file tier, its settings are
// errors.
func (s *StoreConfig) validateFile(formats block.Formats, there bool) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch {
	case there && len(s.Dirs) == 0:
		bad("pipeline %q has a file tier, but no directory is given", s.Pipeline)
	case there && formats != nil:
		c := s.fileTier(formats)
		c.MaxBytes = max(0, c.MaxBytes) // a negative value is reported already
		errs = append(errs, c.Validate())
	case !there && len(s.Dirs) > 0:
		bad("directory %q is given, but pipeline %q has no file tier", s.Dirs[0], s.Pipeline)
	case !there && s.SharedBound:
		bad("the file tier's bound is shared, but there is none: give a directory")
	case !there && s.FileBytes > 0:
		bad("the file tier is bounded to %d bytes, but there is none: give a directory", s.FileBytes)
	case !there && len(s.DirBytes) > 0:
		bad("%d directories of the file tier are bounded, but there is none: give a directory", len(s.DirBytes))
	case !there && s.Fsync != file.FsyncNever:
		bad("the file tier is to sync files (%s), but there is none: give a directory", s.Fsync)
	}
	return errors.Join(errs...)
}

// logTier returns the configuration of the log tier.
func (s *StoreConfig) logTier(formats block.Formats) log.Config {
	return log.Config{Dir: s.LogDir, Formats: formats, Fsync: s.LogFsync, MaxBytes: s.LogBytes, ReadOnly: s.ReadOnly}
}

// validateLog is validateFile for the log tier.
func (s *StoreConfig) validateLog(formats block.Formats, there bool) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch {
	case there && s.LogDir == "":
		bad("pipeline %q has a log tier, but no directory is given", s.Pipeline)
	case there && formats != nil:
		errs = append(errs, func() error { c := s.logTier(formats); return c.Validate() }())
	case !there && s.LogDir != "":
		bad("directory %q is given, but pipeline %q has no log tier", s.LogDir, s.Pipeline)
	case !there && s.LogBytes > 0:
		bad("the log tier is bounded to %d bytes, but there is none: give a directory", s.LogBytes)
	case !there && s.LogFsync != log.FsyncInterval:
		bad("the log tier is to sync its segments (%s), but there is none: give a directory", s.LogFsync)
	}
	return errors.Join(errs...)
}

// openLower opens the tier below the cache, if there is one.
func (e *Engine) openLower(ctx context.Context) error {
	tiers, err := e.cfg.Store.tiers()
	if err != nil {
		return err
	}
	reader, err := e.openFiles(ctx)
	if err != nil {
		return err
	}
	var t tier.Tier
	switch {
	case slices.Contains(tiers, store.TierFile):
		c := e.cfg.Store.fileTier(e.groups.formats)
		c.Identities, c.FS, c.Reader = e.groups.ids, dirfs.Of(ctx), reader
		var ft *file.Tier
		if ft, err = file.Open(ctx, c); err == nil {
			t = ft
			e.noteOthers(ft)
		}
	case slices.Contains(tiers, store.TierLog):
		c := e.cfg.Store.logTier(e.groups.formats)
		c.Identities, c.FS, c.Reader = e.groups.ids, dirfs.Of(ctx), reader
		var l *log.Tier
		if l, err = log.Open(ctx, c); err == nil {
			e.note(l.Notes()...)
			t = l
		}
	default:
		return nil
	}
	if err != nil {
		return err // names the operation
	}
	e.lower = append(e.lower, t)
	e.closers.Add(t.Name()+" tier", t.Close)
	return nil
}

// noteOthers adds a note if other identities use part of the file tier's bound.
func (e *Engine) noteOthers(t *file.Tier) {
	if s := t.Stats(); s.OthersBytes > 0 {
		e.note(fmt.Sprintf("the bound of %d bytes is for all folders in the parents of the file tier's directories: other identities have %d bytes there",
			s.CapacityBytes, s.OthersBytes))
	}
}

// openFiles opens the stream that reads the files of a tier below the cache. It returns nil unless
// StoreConfig.StreamFiles is set.
func (e *Engine) openFiles(ctx context.Context) (dirfs.Reader, error) {
	c := &e.cfg.Store
	dirs := c.Dirs
	if c.LogDir != "" {
		dirs = []string{c.LogDir}
	}
	if !c.StreamFiles {
		return nil, nil
	}
	calibration := e.cfg.Stream.Calibration
	if e.cfg.Device.Driver == Sim { // its copy paths are not measured either
		calibration = profile.Never
	}
	found, notes, err := profile.Files(ctx, existing(dirs), calibration, e.cfg.Stream.ProfileDir, streamfile.MeasureOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the profile of the file system: %w", err)
	}
	if calibration != profile.Never {
		e.note(notes...)
	}
	s, err := streamfile.Open(streamfile.Options{Profile: found})
	if err != nil {
		return nil, err // names the operation
	}
	e.files = s
	e.closers.Add("stream of files", s.Close)
	return s, nil
}

// FileStats returns the figures of the stream that reads the tiers' files, or zeros without it.
// Safe for concurrent use, also after Close.
func (e *Engine) FileStats() streamfile.Stats {
	if e.files == nil {
		return streamfile.Stats{}
	}
	return e.files.Stats()
}

// existing returns the directories that exist, and for each other one its nearest existing parent.
func existing(dirs []string) []string {
	out := make([]string, len(dirs))
	for i, d := range dirs {
		for _, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) && d != filepath.Dir(d); _, err = os.Stat(d) {
			d = filepath.Dir(d)
		}
		out[i] = d
	}
	return out
}
