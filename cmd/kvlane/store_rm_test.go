package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// "kvlane store rm" removes blocks of both kinds of directories by key, identity and age. It is
// refused while a process has the directory open, and names that process.
func TestStoreRemove(t *testing.T) {
	f := tiertest.NewFormat(t)
	formats := block.Formats{f}
	for kind, open := range map[string]func(dir string) (tier.Tier, error){
		"files": func(dir string) (tier.Tier, error) {
			return (&file.Config{Dirs: []string{dir}, Formats: formats}).OpenTier(t.Context())
		},
		"log": func(dir string) (tier.Tier, error) {
			return (&log.Config{Dir: dir, Formats: formats}).OpenTier(t.Context())
		},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			tr, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				e := tiertest.Buffer(t, f.Layout.ImageBytes())
				tiertest.Seal(t, f, e.Bytes(), tiertest.Key(i), 0)
				if err := tr.Put(t.Context(), tiertest.Key(i), e); err != nil {
					t.Fatal(err)
				}
			}
			rm := func(want int, args ...string) (stdout, stderr string) {
				t.Helper()
				code, stdout, stderr := execute(t, append([]string{"store", "rm", dir}, args...)...)
				if code != want {
					t.Errorf("rm %v: exit code %d, %s%s", args, code, stdout, stderr)
				}
				return stdout, stderr
			}
			key := tiertest.Key(1).String()
			if _, stderr := rm(exitFailure, "--key", key); !strings.Contains(stderr, fmt.Sprintf("process %d (", os.Getpid())) ||
				!strings.Contains(stderr, "Next: stop the process that has the directory open") {
				t.Errorf("rm in an open directory: %s", stderr)
			}
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if stdout, _ := rm(exitOK, "--key", key); !strings.Contains(stdout, "blocks removed  1\n") {
				t.Errorf("rm --key: %s", stdout)
			}
			if _, stderr := rm(exitFailure, "--key", key); !strings.Contains(stderr, "no block with that key") || strings.Contains(stderr, "Next:") {
				t.Errorf("rm --key of a removed block: %s", stderr)
			}
			rm(exitUsage)
			rm(exitUsage, "--key", "abc")
			rm(exitUsage, "--identity", "abc")
			rm(exitUsage, "--max-age", "-1h")
			var r dirRemoved
			for _, c := range []struct {
				want int
				args []string
			}{
				{0, []string{"--max-age", "1h"}},
				{0, []string{"--identity", block.Digest{1}.String()}},
				{1, []string{"--identity", f.Identity.String(), "--key", tiertest.Key(2).String()}},
				{2, []string{"--max-age", "1ns"}},
			} {
				stdout, _ := rm(exitOK, append(c.args, "--json")...)
				if r = (dirRemoved{}); json.Unmarshal([]byte(stdout), &r) != nil || r.Removed != c.want || r.Bytes != int64(c.want)*f.Layout.ImageBytes() {
					t.Errorf("rm %v: %s", c.args, stdout)
				}
			}
		})
	}
}
