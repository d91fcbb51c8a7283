package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// What was set aside and what kvlane has not made goes where asked for; blocks and segments stay.
func TestClearRemovesWhatIsAskedFor(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	for i := range 3 {
		if err := tr.Put(t.Context(), tiertest.Key(i), image(t, f, tiertest.Key(i))); err != nil {
			t.Fatal(err)
		}
	}
	closeTier(t, tr)
	damage(t, c.Dir, f, tiertest.Key(1))
	r, err := log.Repair(t.Context(), c.Dir)
	if err != nil || r.SetAside != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	aside := ""
	for _, found := range r.Findings {
		if found.Key == tiertest.Key(1) {
			aside = found.MovedTo
		}
	}
	if _, err := os.Stat(aside); err != nil || !strings.HasSuffix(aside, tiertest.Key(1).String()) {
		t.Fatalf("it was moved to %q, %v", aside, err)
	}
	notes := filepath.Join(c.Dir, "notes.txt")
	segment := segmentFiles(t, c.Dir)[0]
	bytes, err := os.ReadFile(segment)
	other := filepath.Join(c.Dir, "seg-0000000000000077") // another log's
	if err = errors.Join(err, os.WriteFile(notes, []byte("mine"), 0o600), os.WriteFile(other, bytes, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{segment, other, "index", "kvlane.json", "no-such"} {
		if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Quarantine: true, Names: []string{name}}); !errors.Is(err, errdefs.ErrInvalid) || len(got.Removed) > 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Quarantine: true}); err != nil || len(got.Removed) != 1 || got.Removed[0] != aside {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Foreign: true}); err != nil || len(got.Removed) != 1 || got.Removed[0] != notes || got.Bytes != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.Remove(other); err != nil {
		t.Errorf("the segment of another log: %v", err)
	}
	if v, err := log.Verify(t.Context(), c.Dir, nil); err != nil || !v.Clean() || v.Blocks != 2 || v.Quarantined != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := log.Clear(t.Context(), t.TempDir(), log.Unwanted{}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("no directory of blocks: %v", err)
	}
}
