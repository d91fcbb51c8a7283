package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// The tiers that a pipeline may name.
const (
	TierCache = "cache" // slots of pinned host memory; always the first
	TierFile  = "file"  // one file for each block
	TierLog   = "log"   // blocks one after another in large files
)

// ParsePipeline splits a pipeline into its tiers, first to last: "cache", "file" or "log" alone, or
// the cache above one of the others. Without the cache, blocks pass through pinned memory and are
// kept in the one tier only. Errors wrap ErrInvalid and name the invalid tier.
func ParsePipeline(s string) ([]string, error) {
	fail := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("parse pipeline %q: %s: %w", s, fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	if strings.TrimSpace(s) == "" {
		return fail("it is empty; known pipelines: cache, file, log, cache|file, cache|log")
	}
	names := strings.Split(s, "|")
	for i, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case name == "":
			return fail("tier %d has no name", i+1)
		case name != TierCache && name != TierFile && name != TierLog:
			return fail("unknown tier %q; known tiers: %s, %s, %s", name, TierCache, TierFile, TierLog)
		case slices.Contains(names[:i], name):
			return fail("tier %q is given twice", name)
		case i > 0 && name == TierCache:
			return fail("tier %q comes after %q and must be the first: the device copies to and from its slots", name, names[i-1])
		case i > 1 || i == 1 && names[0] != TierCache:
			return fail("tier %q comes after %q: only one tier below the cache is supported", name, names[i-1])
		}
		names[i] = name
	}
	return names, nil
}
