package settings_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
)

// Each row is complete: its page has a heading with its name, and its settings match the fields of
// its configuration.
func TestTiersAreComplete(t *testing.T) {
	for i := range settings.Tiers {
		row := &settings.Tiers[i]
		if row.Name == "" || row.Doc == "" || len(row.Settings) == 0 || settings.TierByName(row.Name) != row || (row.New == nil) != (i == 0) {
			t.Errorf("tier %q: the row is incomplete, repeated or in the wrong place", row.Name)
			continue
		}
		page, err := os.ReadFile(filepath.Join("..", "..", "docs", row.Page))
		if err != nil || !regexp.MustCompile("(?m)^##* .*`"+row.Name+"`").Match(page) {
			t.Errorf("tier %s: docs/%s has no heading with its name: %v", row.Name, row.Page, err)
		}
		if row.New == nil {
			continue
		}
		fields := reflect.TypeOf(row.New(settings.TierBlocks{})).Elem()
		var got, want []string
		for n := range fields.NumField() {
			if key := fields.Field(n).Tag.Get("config"); key != "" && key != "read_only" {
				got = append(got, "store."+key)
			}
		}
		for n := range row.Settings {
			want = append(want, row.Settings[n].Key)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("tier %s: the fields have the keys %q, the row %q", row.Name, got, want)
		}
	}
}

func TestParsePipeline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want []string
		err  string
	}{
		{"cache", []string{"cache"}, ""},
		{"cache|file", []string{"cache", "file"}, ""},
		{" Cache | FILE ", []string{"cache", "file"}, ""},
		{"", nil, "empty"},
		{"file", []string{"file"}, ""},
		{"log", []string{"log"}, ""},
		{"cache|log", []string{"cache", "log"}, ""},
		{"file|cache", nil, `tier "cache" comes after "file" and must be the first`},
		{"file|log", []string{"file", "log"}, ""},
		{"cache|file|log", []string{"cache", "file", "log"}, ""},
		{"cache|log|file", []string{"cache", "log", "file"}, ""},
		{"file|log|cache", nil, `tier "cache" comes after "log" and must be the first`},
		{"cache|tape", nil, `unknown tier "tape"; known tiers: cache, file, log`},
		{"cache||file", nil, "tier 2 has no name"},
		{"cache|file|file", nil, "given twice"},
		{"cache|file|log|file", nil, "given twice"},
		{"cache|cache", nil, "given twice"},
	} {
		got, err := settings.ParsePipeline(c.in)
		switch {
		case c.err == "" && (err != nil || !slices.Equal(got, c.want)):
			t.Errorf("%q: got %q, %v", c.in, got, err)
		case c.err != "" && (!errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: error is %v, want one that contains %q", c.in, err, c.err)
		}
	}
}
