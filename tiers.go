package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// durableTier checks and opens one of store.DurableTiers.
type durableTier struct {
	dirs func(*StoreConfig) []string
	// validate returns every problem of the tier. If it is not in the pipeline, its settings are
	// errors.
	validate func(s *StoreConfig, formats block.Formats, there bool) error
	open     func(context.Context, *Engine) (tier.Tier, error)
}

// durableTiers has the tiers of store.DurableTiers by name.
var durableTiers = map[string]durableTier{
	store.TierFile: {func(s *StoreConfig) []string { return s.Dirs }, (*StoreConfig).validateFile, openFile},
	store.TierLog: {func(s *StoreConfig) []string {
		if s.LogDir == "" {
			return nil
		}
		return []string{s.LogDir}
	}, (*StoreConfig).validateLog, openLog},
}

// tiers returns the names of the pipeline's tiers, fast to slow.
func (s *StoreConfig) tiers() ([]string, error) {
	if s.Pipeline != "" {
		return store.ParsePipeline(s.Pipeline)
	}
	names := []string{store.TierCache}
	for _, t := range store.DurableTiers() {
		if len(s.dirsOf(t.Name)) > 0 {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// dirsOf returns the directories of some tiers.
func (s *StoreConfig) dirsOf(tiers ...string) (dirs []string) {
	for _, name := range tiers {
		if t, ok := durableTiers[name]; ok {
			dirs = append(dirs, t.dirs(s)...)
		}
	}
	return dirs
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

// openLower opens the tiers below the cache.
func (e *Engine) openLower(ctx context.Context) error {
	tiers, err := e.cfg.Store.tiers()
	if err != nil {
		return err
	}
	for _, name := range tiers {
		d, ok := durableTiers[name]
		if !ok {
			continue // the cache
		}
		t, err := d.open(ctx, e)
		if err != nil {
			return err // names the operation
		}
		e.lower = append(e.lower, t)
		e.closers.Add(t.Name()+" tier", t.Close)
	}
	return nil
}

func openFile(ctx context.Context, e *Engine) (tier.Tier, error) {
	c := e.cfg.Store.fileTier(e.groups.formats)
	c.Identities, c.FS, c.Direct = e.groups.ids, dirfs.Of(ctx), e.directFiles()
	t, err := file.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	e.noteOthers(t)
	return t, nil
}

func openLog(ctx context.Context, e *Engine) (tier.Tier, error) {
	c := e.cfg.Store.logTier(e.groups.formats)
	c.Identities, c.FS, c.Direct = e.groups.ids, dirfs.Of(ctx), e.directFiles()
	t, err := log.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	e.note(t.Notes()...)
	return t, nil
}

// noteOthers adds a note if other identities use part of the file tier's bound.
func (e *Engine) noteOthers(t *file.Tier) {
	if s := t.Stats(); s.OthersBytes > 0 {
		e.note(fmt.Sprintf("the limit of %d bytes is for all folders in the parent directories of the file tier: other identities use %d bytes there",
			s.CapacityBytes, s.OthersBytes))
	}
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
