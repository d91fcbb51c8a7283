package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// storeWith makes a directory of each kind with n blocks, and calls f with it and with a function
// that opens it.
func storeWith(t *testing.T, n int, f func(t *testing.T, dir string, format block.Format, open func() tier.Tier)) {
	t.Helper()
	format := tiertest.NewFormat(t)
	formats := block.Formats{format}
	for kind, openAt := range map[string]func(dir string) (tier.Tier, error){
		"files": func(dir string) (tier.Tier, error) {
			return (&file.Config{Dirs: []string{dir}, Formats: formats}).OpenTier(t.Context())
		},
		"log": func(dir string) (tier.Tier, error) {
			return (&log.Config{Dir: dir, Formats: formats}).OpenTier(t.Context())
		},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			open := func() tier.Tier {
				tr, err := openAt(dir)
				must(t, err)
				return tr
			}
			tr := open()
			for i := range n {
				e := tiertest.Buffer(t, format.Layout.ImageBytes())
				tiertest.Seal(t, format, e.Bytes(), tiertest.Key(i), 0)
				must(t, tr.Put(t.Context(), tiertest.Key(i), e))
			}
			must(t, tr.Close(t.Context()))
			f(t, dir, format, open)
		})
	}
}

// "kvlane store pin" and "unpin" change the pins of both kinds of directories, which "ls" and "stat"
// show, and which "rm" and "gc" respect.
func TestStorePin(t *testing.T) {
	storeWith(t, 4, func(t *testing.T, dir string, f block.Format, open func() tier.Tier) {
		key := func(i int) string { return tiertest.Key(i).String() }
		identity, size := f.Identity.String(), f.Layout.ImageBytes()
		store := func(want int, command string, args ...string) (stdout, stderr string) {
			t.Helper()
			code, stdout, stderr := execute(t, append([]string{"store", command, dir}, args...)...)
			if code != want {
				t.Errorf("%s %v: exit code %d, want %d, %s%s", command, args, code, want, stdout, stderr)
			}
			return stdout, stderr
		}
		wantPinned := func(stdout string, changed, pinned int64) {
			t.Helper()
			if r := (dirPinned{}); json.Unmarshal([]byte(stdout), &r) != nil || r.Bytes != changed*size ||
				r != (dirPinned{dir, int(changed), changed * size, pinned, pinned * size}) {
				t.Errorf("%s; want %d changed, %d pinned", stdout, changed, pinned)
			}
		}
		tr := open()
		if _, stderr := store(exitFailure, "pin", "--key", key(0)); !strings.Contains(stderr, fmt.Sprintf("process %d (", os.Getpid())) ||
			!strings.Contains(stderr, "Next: stop the process that has the directory open") {
			t.Errorf("pin in an open directory: %s", stderr)
		}
		must(t, tr.Close(t.Context()))

		stdout, _ := store(exitOK, "pin", "--key", key(0), "--key", key(1), "--json")
		wantPinned(stdout, 2, 2)
		if _, stderr := store(exitFailure, "pin", "--identity", identity); !strings.Contains(stderr, fmt.Sprintf(
			"%d bytes are pinned, %d more are selected, and %d bytes may be pinned", 2*size, 2*size, 2*size)) || !strings.Contains(stderr, "--max-bytes SIZE") {
			t.Errorf("pin above the limit: %s", stderr)
		}
		stdout, _ = store(exitOK, "pin", "--identity", identity, "--key", key(2), "--max-bytes", "1MiB")
		if !strings.Contains(stdout, "blocks pinned  1, ") || !strings.Contains(stdout, "pinned now     3, ") {
			t.Errorf("pin: %s", stdout)
		}
		if stdout, _ = store(exitOK, "stat"); !strings.Contains(stdout, "pinned             3, ") {
			t.Errorf("stat: %s", stdout)
		}
		if stdout, _ = store(exitOK, "ls"); strings.Count(stdout, "*\n") != 3 || len(strings.Split(stdout, "\n")[1]) > 80 {
			t.Errorf("ls: %s", stdout)
		}
		if stdout, _ = store(exitOK, "ls", "--pinned", "--json"); strings.Count(stdout, `"pinned":true`) != 3 || strings.Contains(stdout, key(3)) {
			t.Errorf("ls --pinned: %s", stdout)
		}
		if _, stderr := store(exitFailure, "rm", "--key", key(1)); !strings.Contains(stderr, "1 blocks: pinned") || !strings.Contains(stderr, "kvlane store unpin DIR") {
			t.Errorf("rm of a pinned block: %s", stderr)
		}
		stdout, _ = store(exitOK, "gc", "--max-bytes", "0")
		if !strings.Contains(stdout, "above SIZE      3 blocks, "+present.Bytes(3*size)+", are pinned: kvlane store ls --pinned "+dir+" lists them\n") {
			t.Errorf("gc of pinned blocks: %s", stdout)
		}
		if stdout, _ = store(exitOK, "gc", "--max-bytes", "1MiB"); strings.Contains(stdout, "pinned") {
			t.Errorf("gc to a size above that of pinned blocks: %s", stdout)
		}
		if stdout, _ = store(exitOK, "ls", "--json"); strings.Count(stdout, `"pinned":true`) != 3 || strings.Contains(stdout, key(3)) {
			t.Errorf("after gc: %s", stdout)
		}
		if _, stderr := store(exitFailure, "pin", "--key", key(3)); !strings.Contains(stderr, "no block with that key") {
			t.Errorf("pin of a missing block: %s", stderr)
		}
		stdout, _ = store(exitOK, "unpin", "--key", key(1), "--json")
		wantPinned(stdout, 1, 2)
		if _, stderr := store(exitFailure, "unpin", "--key", key(1)); !strings.Contains(stderr, "no block with that key") {
			t.Errorf("unpin of an unpinned block: %s", stderr)
		}
		store(exitOK, "rm", "--key", key(1))
		stdout, _ = store(exitOK, "unpin", "--identity", identity, "--json")
		wantPinned(stdout, 2, 0)
		store(exitOK, "gc", "--max-bytes", "0")
		if stdout, _ = store(exitOK, "ls"); stdout != "no blocks\n" {
			t.Errorf("after unpin and gc: %s", stdout)
		}
		for _, command := range []string{"pin", "unpin"} {
			store(exitUsage, command)
			store(exitUsage, command, "--key", "abc")
			store(exitUsage, command, "--identity", "abc")
		}
	})
}
