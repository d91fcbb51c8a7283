package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// The tiers that a pipeline may name.
const (
	TierCache = "cache"
	TierFile  = "file"
	TierLog   = "log"
)

// TierInfo is a row of Tiers.
type TierInfo struct {
	Name string
	Doc  string
	// Memory is set if a device copies to and from the tier. Such a tier is the first of its
	// pipeline. A block in another tier is durable.
	Memory bool
	// Dir is the setting that has the tier's directories, and Settings are those that have an
	// effect only with it (package internal/settings).
	Dir      string
	Settings []string
	// Shared is set if several processes may have the tier open. A Manager uses only such tiers
	// below its cache.
	Shared bool
}

// Tiers has every tier that a pipeline may name.
var Tiers = []TierInfo{
	{Name: TierCache, Doc: "pinned memory, always first", Memory: true},
	{Name: TierFile, Doc: "a file per block", Dir: "file-dir", Settings: []string{"file-bytes", "file-dir-bytes", "fsync"}, Shared: true},
	{Name: TierLog, Doc: "large files, for one process", Dir: "log-dir", Settings: []string{"log-bytes", "log-fsync"}},
}

// DurableTiers returns the rows of Tiers that are not memory.
func DurableTiers() []TierInfo {
	return slices.DeleteFunc(slices.Clone(Tiers), func(t TierInfo) bool { return t.Memory })
}

// ParsePipeline splits a pipeline into its tiers, from fast to slow: any of Tiers, each once, with
// "|" between them, and memory first. Without memory, blocks pass through pinned memory and are
// kept in the other tiers only. Errors wrap ErrInvalid and name the invalid tier.
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
		case i > 0 && Tiers[at].Memory:
			return fail("tier %q comes after %q and must be the first: the device copies to and from its slots", name, names[i-1])
		}
		names[i] = name
	}
	return names, nil
}
