package kvlane

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/tier/cache"
)

// tiers returns the names of the pipeline's tiers, fast to slow.
func (s *StoreConfig) tiers() ([]string, error) {
	if s.Pipeline != "" {
		return settings.ParsePipeline(s.Pipeline)
	}
	names := []string{cache.Name}
	for _, t := range settings.DurableTiers() {
		if t.Place().Given(s) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// dirs returns the directories of the pipeline's tiers.
func (s *StoreConfig) dirs() (dirs []string, err error) {
	names, err := s.tiers()
	for _, t := range settings.DurableTiers() {
		if slices.Contains(names, t.Name) {
			dirs = append(dirs, t.Dirs(s)...)
		}
	}
	return dirs, err
}

// passing reports whether the pipeline has no cache, so that blocks only pass through pinned
// memory.
func (s *StoreConfig) passing() bool {
	tiers, err := s.tiers()
	return err == nil && tiers[0] != cache.Name
}

// slotBytes returns the size of the pinned memory of the cache, or of the window without a cache.
func (s *StoreConfig) slotBytes(formats block.Formats) int64 {
	if s.CacheBytes == 0 && s.passing() {
		return max(DefaultWindowBytes, minSlots*formats.MaxImageBytes())
	}
	return s.CacheBytes
}

// openLower opens the tiers below the cache.
func (e *Engine) openLower(ctx context.Context) error {
	names, err := e.cfg.Store.tiers()
	if err != nil {
		return err
	}
	for _, name := range names {
		row := settings.TierByName(name)
		if row.New == nil {
			continue // the cache
		}
		b := e.groups.blocks(ctx, e.directFiles())
		b.Events = &e.events
		b.OpenNIC = func() (*blockio.RDMAOptions, string, error) { return e.openRemoteNIC(ctx) }
		c := row.Config(&e.cfg.Store, b)
		t, err := c.OpenTier(ctx)
		if err != nil {
			return err // the error names the operation
		}
		if n, ok := t.(interface{ Notes() []string }); ok {
			e.note(n.Notes()...)
		}
		e.lower = append(e.lower, t)
		e.closers.Add(name+" tier", t.Close)
	}
	return nil
}

// blocks describes the blocks of a tier.
func (g *groups) blocks(ctx context.Context, direct dirfs.Direct) settings.TierBlocks {
	return settings.TierBlocks{Formats: g.formats, Identities: g.ids, FS: dirfs.Of(ctx), Direct: direct}
}

// existing returns dirs, with each missing directory replaced by its nearest existing parent.
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
