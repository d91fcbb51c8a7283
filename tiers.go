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

// logTier returns the configuration of the log tier.
func (s *StoreConfig) logTier(formats block.Formats) log.Config {
	return log.Config{Dir: s.LogDir, Formats: formats, Fsync: s.LogFsync, MaxBytes: s.LogBytes, ReadOnly: s.ReadOnly}
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
		c.Direct = e.directFiles()
		var ft *file.Tier
		if ft, err = file.Open(ctx, c); err == nil {
			t = ft
			e.noteOthers(ft)
		}
	case slices.Contains(tiers, store.TierLog):
		c := e.cfg.Store.logTier(e.groups.formats)
		c.Identities, c.FS, c.Reader = e.groups.ids, dirfs.Of(ctx), reader
		c.Direct = e.directFiles()
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
		e.note(fmt.Sprintf("the limit of %d bytes is for all folders in the parent directories of the file tier: other identities use %d bytes there",
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
