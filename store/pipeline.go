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
	TierFile  = "file"  // one file a block
)

// ParsePipeline splits a pipeline such as "cache|file" into its tiers, first to last. The first is always the cache, and
// no tier is named twice. Errors wrap ErrInvalid and name the tier that is wrong.
func ParsePipeline(s string) ([]string, error) {
	fail := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("parse pipeline %q: %s: %w", s, fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	if strings.TrimSpace(s) == "" {
		return fail("it is empty; known pipelines: cache, cache|file")
	}
	names := strings.Split(s, "|")
	for i, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case name == "":
			return fail("tier %d has no name", i+1)
		case name != TierCache && name != TierFile:
			return fail("unknown tier %q; known tiers: %s, %s", name, TierCache, TierFile)
		case slices.Contains(names[:i], name):
			return fail("tier %q is named twice", name)
		case i == 0 && name != TierCache:
			return fail("the first tier is %q and must be %q, whose slots the device copies to and from", name, TierCache)
		}
		names[i] = name
	}
	return names, nil
}
