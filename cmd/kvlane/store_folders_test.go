package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// folderFigures has some fields of the output of stat and gc.
type folderFigures struct {
	Directory string `json:"directory"`
	Blocks    int64  `json:"blocks"`
	Removed   int64  `json:"removed_blocks"`
}

// The commands accept the directory that a configuration names. It has a folder for each identity.
func TestStoreCommandsOfSeveralFolders(t *testing.T) {
	dir := t.TempDir()
	for i, folder := range []string{"kv-a", "kv-b"} {
		path := filepath.Join(dir, folder)
		if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", path)...); code != exitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		at := time.Now().Add(time.Duration(i-10) * time.Hour) // kv-a was used before kv-b
		if err := os.Chtimes(filepath.Join(path, "kvlane.json"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "notes"), 0o750); err != nil {
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
	for _, command := range []string{"ls", "stat", "verify"} {
		got := ok(command, dir)
		if !strings.Contains(got, "kv-a") || !strings.Contains(got, "kv-b") || strings.Contains(got, "notes") {
			t.Errorf("%s:\n%s", command, got)
		}
	}
	blocks := func() map[string]int64 {
		var all []folderFigures
		if err := json.Unmarshal([]byte(ok("stat", dir, "--json")), &all); err != nil {
			t.Fatal(err)
		}
		found := map[string]int64{}
		for _, s := range all {
			found[filepath.Base(s.Directory)] = s.Blocks
		}
		return found
	}
	if got := blocks(); got["kv-a"] != 2 || got["kv-b"] != 2 || len(got) != 2 {
		t.Errorf("stat --json: %v", got)
	}
	if got := ok("ls", dir, "--json"); strings.Count(got, `"directory":"`) != 4 {
		t.Errorf("ls --json:\n%s", got)
	}
	code, _, stderr := execute(t, "store", "gc", dir, "--remove", "x")
	if code != exitUsage || !strings.Contains(stderr, "kv-a") {
		t.Errorf("gc --remove: exit code %d, %s", code, stderr)
	}
	ok("gc", dir, "--max-bytes", "36KiB")
	if got := blocks(); got["kv-a"] != 1 || got["kv-b"] != 2 {
		t.Errorf("after gc of a block: %v", got)
	}
	ok("gc", dir, "--max-bytes", "12KiB")
	if got := blocks(); got["kv-a"] != 0 || got["kv-b"] != 1 {
		t.Errorf("after gc of three blocks: %v", got)
	}
	// A fault in one folder determines the exit code, but the other folders are still verified.
	if err := os.Remove(filepath.Join(dir, "kv-a", "kvlane.json")); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := execute(t, "store", "verify", dir)
	if code != exitFailure || !strings.Contains(stdout, "kv-b") || !strings.Contains(stderr, "kv-a") {
		t.Errorf("verify: exit code %d, %s\n%s", code, stdout, stderr)
	}
}

// With one folder below the directory of a configuration, gc works as with several.
func TestStoreGCOfOneFolder(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", filepath.Join(dir, "kv-a"))...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	code, stdout, stderr := execute(t, "store", "gc", dir, "--max-bytes", "12KiB", "--json")
	var got folderFigures
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if got.Removed != 1 || filepath.Base(got.Directory) != "kv-a" {
		t.Errorf("collected: %+v", got)
	}
}

// The help does not show a default for a size that is not set.
func TestStoreGCHelpHasNoDefaultSize(t *testing.T) {
	if code, stdout, stderr := execute(t, "store", "gc", "--help"); code != exitOK || strings.Contains(stdout, "-1B") || !strings.Contains(stdout, "--max-bytes") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// gc skips a folder without kvlane.json and collects the others.
func TestStoreGCPassesOverAFolderWithoutItsMarker(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"kv-a", "kv-b", "kv-c"} {
		if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", filepath.Join(dir, folder))...); code != exitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	if err := os.Remove(filepath.Join(dir, "kv-a", "kvlane.json")); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := execute(t, "store", "stat", dir)
	if code != exitFailure || strings.HasPrefix(stdout, "\n") || !strings.Contains(stdout, "\n\n") {
		t.Errorf("stat: exit code %d, %q, %s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "kvlane store verify --repair "+dir+" ") {
		t.Errorf("the error does not name the repair: %s", stderr)
	}
	code, stdout, stderr = execute(t, "store", "gc", dir, "--max-bytes", "0", "--json")
	var got []folderFigures
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	if code != exitFailure || !strings.Contains(stderr, "skip "+filepath.Join(dir, "kv-a")) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if len(got) != 2 || got[0].Removed != 2 || got[1].Removed != 2 {
		t.Errorf("collected:\n%s", stdout)
	}
}
