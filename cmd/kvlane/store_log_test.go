package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// The store commands recognize a log by its directory.
func TestStoreCommandsOfALog(t *testing.T) {
	dir := t.TempDir()
	f := tiertest.NewFormat(t)
	tr, err := log.Open(t.Context(), log.Config{Dir: dir, Formats: block.Formats{f}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		e := tiertest.Buffer(t, f.Layout.ImageBytes())
		tiertest.Seal(t, f, e.Bytes(), tiertest.Key(i), 0)
		if err := tr.Put(t.Context(), tiertest.Key(i), e); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := execute(t, "store", "gc", dir, "--max-bytes", "0"); code != exitFailure || !strings.Contains(stderr, "only one may") {
		t.Errorf("gc of a log that is in use: exit code %d, %s", code, stderr)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ok := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, append([]string{"store"}, args...)...)
		if code != exitOK || stderr != "" {
			t.Errorf("store %v: exit code %d, %s", args, code, stderr)
		}
		return stdout
	}
	if got := ok("ls", dir); strings.Count(got, "\n") != 4 {
		t.Errorf("ls:\n%s", got)
	}
	if got := ok("stat", dir); !strings.Contains(got, "blocks             3") || !strings.Contains(got, "segments           1") {
		t.Errorf("stat:\n%s", got)
	}
	if got := ok("verify", dir); !strings.Contains(got, "clean") {
		t.Errorf("verify:\n%s", got)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "seg-*"))
	if err = errors.Join(err, os.Remove(filepath.Join(dir, "kvlane.json"))); err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	damage(t, segments[0])
	code, stdout, _ := execute(t, "store", "verify", dir, "--repair", "--json")
	var v dirVerdict
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != exitOK || len(v.Findings) != 2 || v.Repaired == nil || !v.Repaired.MarkerMade || v.Repaired.SetAside != 1 {
		t.Errorf("verify --repair: exit code %d, %+v, %v", code, v, err)
	}
	for _, found := range v.Findings {
		if b, err := os.ReadFile(found.MovedTo); found.Problem == "damaged" && (found.Done != "set aside" || err != nil || int64(len(b)) != f.Layout.ImageBytes()) {
			t.Errorf("%+v: it has %d bytes, %v", found, len(b), err)
		}
	}
	if got := ok("gc", "--quarantine", dir); !strings.Contains(got, "files removed  1, 24 KiB") {
		t.Errorf("gc --quarantine:\n%s", got)
	}
	if got := ok("ls", dir); strings.Count(got, "\n") != 3 {
		t.Errorf("ls after repair:\n%s", got)
	}
	var c collectedJSON
	if err := json.Unmarshal([]byte(ok("gc", dir, "--max-bytes", "0", "--json")), &c); err != nil || c.Removed != 2 || c.BytesAfter != 0 {
		t.Errorf("gc: %+v, %v", c, err)
	}
}
