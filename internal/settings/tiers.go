package settings

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// Tier is a row of Tiers.
type Tier struct {
	Name string
	Doc  string
	// Page is the page in docs that has a heading with the tier's name.
	Page string
	// Shared is set if several processes may have the tier open. A Manager uses only such tiers
	// below its cache.
	Shared bool
	// Settings have an effect only with the tier, except for those of the cache. The first is the
	// tier's place: directories or servers. Without a pipeline, a store has the tiers whose place is
	// given. The keys are those of fields of kvlane.StoreConfig.
	Settings []Setting
	// New returns the configuration of a durable tier. Tier.Config sets those of its fields that
	// have a tag with a key. New is nil for the cache: a device copies to and from its slots, so it
	// is the first tier of its pipeline, and its blocks are not durable.
	New func(TierBlocks) TierConfig
}

// TierBlocks describes the blocks of a tier, and how their files are reached. Without Formats, a
// configuration can be neither checked nor opened.
type TierBlocks struct {
	Formats    block.Formats
	Identities []block.Identity
	FS         dirfs.FS     // nil: the operating system's
	Direct     dirfs.Direct // nil: no direct storage
}

// TierConfig is the configuration of a durable tier.
type TierConfig interface {
	// Validate reports all errors, and accesses neither directories nor servers.
	Validate() error
	// OpenTier opens the tier. If the tier has a method Notes, the engine's notes include its
	// result.
	OpenTier(context.Context) (tier.Tier, error)
}

// Tiers has every tier that a pipeline may name, in the order of a store without a pipeline.
var Tiers = []Tier{
	{
		Name: cache.Name, Doc: "pinned memory, always first", Page: "tiers.md",
		Settings: []Setting{
			{Key: "store.cache_bytes", Name: "cache-bytes", Kind: Size, Doc: "pinned host memory of the cache; without a cache, memory through which blocks pass (then 256 MiB by default)", Default: "required with a cache", Flag: "1GiB", FlagOnly: []string{"bench store"}},
		},
	},
	{
		Name: file.Name, Doc: "a file per block", Page: "tiers.md", Shared: true,
		Settings: []Setting{
			{Key: "store.dirs", Name: "file-dir", Kind: Dirs, Doc: "directories of the file tier", Default: "none", Flag: none, FlagOnly: []string{"bench store", "calibrate"}},
			{Key: "store.shared_bound", Kind: Bool, Doc: "`file_bytes` and `dir_bytes` bound all folders in the parent directory of each of `dirs`, of all identities and processes", Default: "false"},
			{Key: "store.file_bytes", Name: "file-bytes", Kind: Size, Doc: "bound of the file tier", Default: "none", Flag: "0"},
			{Key: "store.dir_bytes", Name: "file-dir-bytes", Kind: Sizes, Doc: "bounds of single directories, in their order; directories with 0 share the tier's bound", Default: "none", Flag: none},
			{Key: "store.fsync", Name: "fsync", Doc: "when files are synced: `never`, or `file` (each before its block counts as durable)", Default: "never", Words: []string{"never", "file"}},
		},
		New: func(b TierBlocks) TierConfig {
			return &file.Config{Formats: b.Formats, Identities: b.Identities, FS: b.FS, Direct: b.Direct}
		},
	},
	{
		Name: log.Name, Doc: "large files, for one process", Page: "tiers.md",
		Settings: []Setting{
			{Key: "store.log_dir", Name: "log-dir", Kind: Dir, Doc: "directory of the log tier, on a local disk, for one process at a time", Default: "none", Flag: none},
			{Key: "store.log_bytes", Name: "log-bytes", Kind: Size, Doc: "bound of the log tier", Default: "none", Flag: "0"},
			{Key: "store.log_fsync", Name: "log-fsync", Doc: "when the log is synced: `interval` (ten times a second), `always` (before blocks count as durable) or `never`", Default: "interval", Words: []string{"always", "interval", "never"}},
		},
		New: func(b TierBlocks) TierConfig {
			return &log.Config{Formats: b.Formats, Identities: b.Identities, FS: b.FS, Direct: b.Direct}
		},
	},
}

// DurableTiers returns the rows of Tiers except the cache's.
func DurableTiers() []Tier {
	return slices.DeleteFunc(slices.Clone(Tiers), func(t Tier) bool { return t.New == nil })
}

// TierByName returns the row of a tier, or nil.
func TierByName(name string) *Tier {
	if i := slices.IndexFunc(Tiers, func(t Tier) bool { return t.Name == name }); i >= 0 {
		return &Tiers[i]
	}
	return nil
}

// TierSettings returns the settings of all tiers.
func TierSettings() (all []Setting) {
	for i := range Tiers {
		all = append(all, Tiers[i].Settings...)
	}
	return all
}

// tierDocs describes the tiers that a pipeline may name.
func tierDocs() string {
	var docs []string
	for i := range Tiers {
		docs = append(docs, fmt.Sprintf("`%s` (%s)", Tiers[i].Name, Tiers[i].Doc))
	}
	return strings.Join(docs, ", ")
}

// Place returns the setting of the tier's directories or servers.
func (t *Tier) Place() *Setting { return &t.Settings[0] }

// Names returns the names of the tier's settings that are flags.
func (t *Tier) Names() (names []string) {
	for i := range t.Settings {
		if name := t.Settings[i].Name; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Given reports whether the setting, one of a tier, is not zero in store, a pointer to a
// kvlane.StoreConfig.
func (s *Setting) Given(store any) bool { return !s.of(store).IsZero() }

// Value returns the value of the setting, one of a tier, in store, a pointer to a
// kvlane.StoreConfig.
func (s *Setting) Value(store any) any { return s.of(store).Interface() }

// of returns the field of the setting in store.
func (s *Setting) of(store any) reflect.Value {
	return field(store, strings.TrimPrefix(s.Key, "store."))
}

// SetDir sets the place of a local tier in store, a pointer to a kvlane.StoreConfig.
func (t *Tier) SetDir(store any, dir string) {
	v := any(dir)
	if t.Place().Kind == Dirs {
		v = []string{dir}
	}
	t.Place().of(store).Set(reflect.ValueOf(v))
}

// Dirs returns the directories of the tier in store, a pointer to a kvlane.StoreConfig.
func (t *Tier) Dirs(store any) []string {
	switch v := t.Place().of(store).Interface().(type) {
	case []string:
		if t.Place().IsDir() {
			return v
		}
	case string:
		if t.Place().IsDir() && v != "" {
			return []string{v}
		}
	}
	return nil
}

// Unbound sets the bounds of the tier in store, a pointer to a kvlane.StoreConfig, to zero.
func (t *Tier) Unbound(store any) {
	for i := range t.Settings {
		if s := &t.Settings[i]; s.Kind == Size || s.Kind == Sizes {
			s.of(store).SetZero()
		}
	}
}

// Config returns the configuration of a durable tier, with the values of store, a pointer to a
// kvlane.StoreConfig, in the fields with the same key.
func (t *Tier) Config(store any, b TierBlocks) TierConfig {
	c := t.New(b)
	to := reflect.ValueOf(c).Elem()
	for i := range to.NumField() {
		if key := to.Type().Field(i).Tag.Get(tag); key != "" {
			to.Field(i).Set(field(store, key))
		}
	}
	return c
}

// ParsePipeline splits a pipeline into its tiers, from fast to slow: any of Tiers, each once, with
// "|" between them, and the cache first. Without the cache, blocks pass through pinned memory and
// are kept in the other tiers only. Errors wrap ErrInvalid and name the invalid tier.
func ParsePipeline(s string) ([]string, error) {
	var known []string
	for i := range Tiers {
		known = append(known, Tiers[i].Name)
	}
	fail := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("parse pipeline %q: %s; known tiers: %s: %w", s, fmt.Sprintf(format, args...), strings.Join(known, ", "), errdefs.ErrInvalid)
	}
	if strings.TrimSpace(s) == "" {
		return fail("it is empty")
	}
	names := strings.Split(s, "|")
	for i, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		at := slices.Index(known, name)
		switch {
		case name == "":
			return fail("tier %d has no name", i+1)
		case at < 0:
			return fail("unknown tier %q", name)
		case slices.Contains(names[:i], name):
			return fail("tier %q is given twice", name)
		case i > 0 && Tiers[at].New == nil:
			return fail("tier %q comes after %q and must be the first: the device copies to and from its slots", name, names[i-1])
		}
		names[i] = name
	}
	return names, nil
}
