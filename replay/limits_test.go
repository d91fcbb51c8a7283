package replay

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

// Absurd numbers are refused before anything is allocated. The error names the limits.
func TestDefectAbsurdNumbersAreRefused(t *testing.T) {
	r := newRig(t, rigOptions{geometry: latent, slots: 4})
	for name, change := range map[string]func(*Config){
		"pages":              func(c *Config) { c.Pages = math.MaxInt64 },
		"pages past 32 bits": func(c *Config) { c.Pages = math.MaxUint32 + 2 },
		"concurrency":        func(c *Config) { c.Concurrency = math.MaxInt64 },
		"backlog":            func(c *Config) { c.Backlog = math.MaxInt64 },
		"concurrency of a long trace": func(c *Config) {
			c.Concurrency, c.Summary = MaxConcurrency, &Summary{Requests: 1, MaxBlocks: MaxPages / 16}
		},
		"pages of a long trace": func(c *Config) { c.Summary = &Summary{Requests: 1, MaxBlocks: MaxPages + 1} },
	} {
		c := r.config(latent, writeTrace(t, []int64{1}))
		change(&c)
		if _, err := Run(t.Context(), c); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "at most") && !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
