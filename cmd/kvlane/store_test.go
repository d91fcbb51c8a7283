package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestStoreCommands(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	ok := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, append([]string{"store"}, args...)...)
		if code != exitOK || stderr != "" {
			t.Errorf("store %v: exit code %d, %s", args, code, stderr)
		}
		return stdout
	}
	if got := ok("ls", dir); strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, "KEY  ") || !strings.HasSuffix(got, " 12 KiB  now\n") {
		t.Errorf("ls:\n%s", got)
	}
	var entry struct {
		Key    string
		Bytes  int64
		Shards int
	}
	if err := json.NewDecoder(strings.NewReader(ok("ls", dir, "--json"))).Decode(&entry); err != nil || len(entry.Key) != 64 || entry.Shards != 2 {
		t.Errorf("ls --json: %+v, %v", entry, err)
	}
	if got := ok("stat", dir); !strings.Contains(got, "model            small") || !strings.Contains(got, "blocks             2") {
		t.Errorf("stat:\n%s", got)
	}
	stat := dirStat{formatStat: &formatStat{}}
	if err := json.Unmarshal([]byte(ok("stat", dir, "--json")), &stat); err != nil || stat.Blocks != 2 || stat.Identity.Model != "small" {
		t.Errorf("stat --json: %+v, %v", stat, err)
	}
	if got := ok("verify", dir); !strings.Contains(got, "clean") || !strings.Contains(got, "  xxh3-tree-4k      2\n") {
		t.Errorf("verify:\n%s", got)
	}
	damage(t, filepath.Join(dir, entry.Key[:2], entry.Key))
	code, stdout, stderr := execute(t, "store", "verify", dir, "--json")
	var v dirVerdict
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != exitFailure || v.Clean || len(v.Findings) != 1 || v.Checksums["xxh3-tree-4k"] != 1 ||
		v.Findings[0].Problem != "damaged" || !strings.Contains(v.Findings[0].Path, entry.Key) || !strings.Contains(stderr, "not clean") {
		t.Errorf("verify of a damaged block: exit code %d, %+v, %v, %s", code, v, err, stderr)
	}
	if code, _, stderr := execute(t, "store", "gc", dir); code != exitUsage || !strings.Contains(stderr, "--max-bytes SIZE") || !strings.Contains(stderr, "kvlane store verify DIR") {
		t.Errorf("gc without a bound: exit code %d, %s", code, stderr)
	}
	var c collectedJSON
	if err := json.Unmarshal([]byte(ok("gc", dir, "--max-bytes", "12KiB", "--json")), &c); err != nil || c.Removed != 1 || c.BytesAfter != 12288 {
		t.Errorf("gc: %+v, %v", c, err)
	}
	if got := ok("ls", dir); strings.Count(got, "\n") != 2 {
		t.Errorf("ls after gc:\n%s", got)
	}
}

// collectedJSON is the output of gc --max-bytes --json.
type collectedJSON struct {
	Removed    int64 `json:"removed_blocks"`
	BytesAfter int64 `json:"bytes_after"`
}

func TestStoreCommandsRefuse(t *testing.T) {
	for _, sub := range [][]string{{"ls"}, {"stat"}, {"verify"}, {"gc", "--max-bytes", "0"}} {
		empty := t.TempDir()
		code, stdout, stderr := execute(t, append([]string{"store", sub[0], empty}, sub[1:]...)...)
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, empty) || !strings.Contains(stderr, "not a directory of blocks") {
			t.Errorf("%s of an empty directory: exit code %d, %q, %q", sub[0], code, stdout, stderr)
		}
		if left, err := os.ReadDir(empty); err != nil || len(left) != 0 {
			t.Errorf("%s left %v in it, %v", sub[0], left, err)
		}
		if code, _, _ := execute(t, "store", sub[0]); code != exitUsage {
			t.Errorf("%s of nothing: exit code %d", sub[0], code)
		}
	}
}

// damage flips a bit in the last byte of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The demo reports that it simulates a GPU and that all its claims hold. Its output fits the width
// of the terminal.
func TestDemo(t *testing.T) {
	withoutGPU(t)
	dir := t.TempDir()
	for name, value := range map[string]string{"TERM": "xterm", "COLUMNS": "", "NO_COLOR": "1"} {
		t.Setenv(name, value)
	}
	tty, written := testkit.Terminal(t, 80)
	var errs bytes.Buffer
	code := run(t.Context(), []string{"demo", "--dir", dir}, tty, &errs)
	stdout, stderr := written(), errs.String()
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s\n%s", code, stderr, stdout)
	}
	presenttest.Fits(t, stdout, 80)
	if words := strings.Join(strings.Fields(stdout), " "); !strings.HasPrefix(words, strings.TrimSpace(simulating)) || strings.Count(stdout, "libcuda") != 1 {
		t.Errorf("the demo does not report that it simulates:\n%s", stdout)
	}
	if strings.Count(stdout, "\n  ✓ ") != 11 || strings.Contains(stdout, "✗") || !strings.Contains(stdout, "All of it holds") {
		t.Errorf("the demo prints:\n%s", stdout)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the demo left %v behind, %v", left, err)
	}
	if code, _, stderr := execute(t, "demo", "--device", "tpu"); code != exitUsage || !strings.Contains(stderr, "tpu") {
		t.Errorf("unknown device: exit code %d, %s", code, stderr)
	}
}

// Names of foreign files neither add lines to a report nor send control characters to the terminal.
func TestDefectForeignNamesForgeAReport(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for name, quoted := range map[string]string{"n\nclean    every block is sound": `/n\nclean    every block is sound`, "\x1b]0;pwn\a": `/\x1b]0;pwn\a`} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"verify"}, {"verify", "--repair"}, {"gc", "--foreign"}} {
			_, stdout, stderr := execute(t, append([]string{"store", args[0], dir}, args[1:]...)...)
			if all := stdout + stderr; !strings.Contains(all, quoted) || strings.Contains(all, "\nclean ") || strings.ContainsAny(all, "\x1b\a") {
				t.Errorf("store %v of %q:\n%q", args, name, all)
			}
		}
	}
}

// verify --repair moves damaged files to quarantine. The exit code reports whether a fault remains.
func TestStoreVerifyRepairs(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	blocks, err := filepath.Glob(filepath.Join(dir, "??", "*"))
	if err != nil || len(blocks) != 2 {
		t.Fatal(blocks, err)
	}
	if err := os.WriteFile(blocks[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "kvlane.json")); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := execute(t, "store", "verify", dir); code != exitFailure || !strings.Contains(stdout, "lost") || !strings.Contains(stdout, "damaged") {
		t.Errorf("verify before the repair: exit code %d, %s", code, stdout)
	}
	code, stdout, stderr := execute(t, "store", "verify", dir, "--repair")
	if code != exitOK || !strings.Contains(stdout, "made anew") || !strings.Contains(stdout, "  set aside            to "+filepath.Join(dir, "quarantine")+"/") ||
		!strings.Contains(stdout, "  made anew            from the blocks' headers") || !strings.Contains(stdout, "kvlane store gc --quarantine "+dir+"\n") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if code, stdout, _ := execute(t, "store", "verify", dir, "--json"); code != exitOK || !strings.Contains(stdout, `"clean": true`) {
		t.Errorf("verify after the repair: exit code %d, %s", code, stdout)
	}
	if code, stdout, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir, "--file-read-only")...); code != exitOK {
		t.Errorf("replay with the directory read-only: exit code %d, %s%s", code, stdout, stderr)
	}
	if after, err := filepath.Glob(filepath.Join(dir, "??", "*")); err != nil || len(after) != 1 {
		t.Errorf("the directory has the blocks %q, %v", after, err)
	}
}

// If a directory has a damaged kvlane.json and no blocks, the remedy that verify names makes it
// usable again.
func TestStoreVerifyOfADamagedMarkerWithoutBlocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some blocks")
	replay := small("replay", traceFile(t, goodLine), "--file-dir", dir)
	if code, _, stderr := execute(t, replay...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := execute(t, "store", "gc", dir, "--max-bytes", "0"); code != exitOK {
		t.Fatalf("gc: exit code %d: %s", code, stderr)
	}
	if err := os.WriteFile(filepath.Join(dir, "kvlane.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"store", "verify", dir}, {"store", "verify", "--repair", dir}} {
		code, stdout, stderr := execute(t, args...)
		if all := stdout + stderr; code != exitFailure || !strings.Contains(all, "remove the directory: rm -r '"+dir+"'") || strings.Contains(all, "--repair") ||
			strings.Contains(all, "has to be writable") {
			t.Errorf("%v: exit code %d, %s", args, code, all)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := execute(t, replay...); code != exitOK {
		t.Errorf("after the remedy: exit code %d: %s", code, stderr)
	}
}

// Starting from verify, a user who only follows the hints gets a directory that contains nothing
// but sound blocks.
func TestDefectFromVerifyToACleanDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some blocks")
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	blocks, err := filepath.Glob(filepath.Join(dir, "??", "*"))
	if err != nil || len(blocks) != 2 {
		t.Fatal(blocks, err)
	}
	damage(t, blocks[0])
	notes := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(notes, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	quoted := "'" + dir + "'"
	check := func(code int, args string, wants ...string) {
		t.Helper()
		words := strings.Fields(args)
		got, stdout, stderr := execute(t, append([]string{"store"}, append(words, dir)...)...)
		for _, want := range wants {
			if got != code || !strings.Contains(stdout+stderr, want) {
				t.Errorf("store %s: exit code %d, want %d and %q:\n%s%s", args, got, code, want, stdout, stderr)
			}
		}
	}
	check(exitFailure, "verify", "1 damaged file: run kvlane store verify --repair "+quoted, "1 foreign file: if it can go, kvlane store gc --foreign "+quoted,
		"not clean: 1 damaged file, 1 foreign file\n")
	check(exitFailure, "verify --repair", "  set aside            to "+dir+"/quarantine/", "  left as it is        notes.txt",
		"1 file in quarantine: kvlane store gc --quarantine "+quoted, "not clean: 1 foreign file\n")
	check(exitOK, "stat", "1 file in quarantine: kvlane store gc --quarantine "+quoted)
	check(exitOK, "gc --max-bytes 1GiB", "blocks removed  0")
	if _, err := os.Stat(notes); err != nil {
		t.Errorf("a file was removed without a request: %v", err)
	}
	check(exitUsage, "gc --foreign --remove "+strings.TrimPrefix(blocks[1], dir+"/"), "is neither quarantined nor foreign")
	check(exitOK, "gc --quarantine", "files removed  1, 12 KiB", "  removed      "+dir+"/quarantine/")
	check(exitFailure, "verify", "not clean: 1 foreign file\n")
	check(exitOK, "gc --remove notes.txt", "files removed  1, 4 B")
	check(exitOK, "verify", "every block is sound")
	if left, err := filepath.Glob(filepath.Join(dir, "??", "*")); err != nil || len(left) != 1 || left[0] != blocks[1] {
		t.Errorf("the directory has the blocks %q, %v", left, err)
	}
	// A sound block in quarantine is not removed, and the exit code reports it.
	if err := os.Rename(blocks[1], filepath.Join(dir, "quarantine", "0000000000000001-"+filepath.Base(blocks[1]))); err != nil {
		t.Fatal(err)
	}
	check(exitFailure, "gc --quarantine", "kept; move it to "+blocks[1]+", or remove it by hand", "1 file stays")
}

// verify does not recommend gc for files that gc would keep.
func TestDefectNextNamesACommandThatLeavesTheFile(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	mine := filepath.Join(dir, "mine")
	if err := errors.Join(os.Mkdir(mine, 0o700), os.WriteFile(filepath.Join(mine, "more.txt"), []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := execute(t, "store", "verify", dir)
	if code != exitFailure || !strings.Contains(stdout, "1 foreign file that kvlane store gc keeps: if it can go, remove it by hand") || strings.Contains(stdout, "gc --foreign") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	if code, stdout, _ := execute(t, "store", "gc", "--foreign", dir); code != exitFailure || !strings.Contains(stdout, "a folder that is not empty: remove it by hand") {
		t.Errorf("gc: exit code %d: %s", code, stdout)
	}
}

// gc --quarantine kept foreign files in the quarantine without reporting them.
func TestDefectGCIsSilentAboutForeignFilesInQuarantine(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	aside, mine := filepath.Join(dir, "quarantine", "0000000000000001-kvlane.json"), filepath.Join(dir, "quarantine", "mine")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mine), 0o700), os.WriteFile(mine, []byte("mine"), 0o600), os.WriteFile(aside, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, want string }{
		{"--quarantine", "collected      1 file removed\nfiles removed  1, 2 B\n  removed      " + aside + "\n  stays        " + mine + ": foreign; kvlane store gc --foreign " + dir + " removes it\n"},
		{"--foreign", "collected      1 file removed\nfiles removed  1, 4 B\n  removed      " + mine + "\n"},
	} {
		if code, stdout, stderr := execute(t, "store", "gc", c.flag, dir); code != exitOK || stdout != c.want {
			t.Errorf("gc %s: exit code %d, %q, want %q; %s", c.flag, code, stdout, c.want, stderr)
		}
	}
}

// The suggested command that removes a remaining file is quoted for a shell, whatever the name of
// the directory.
func TestDefectCommandInARowIsEscapedTwice(t *testing.T) {
	name, _ := unprintable(t)
	dir := filepath.Join(t.TempDir(), "it's"+name)
	if code, _, stderr := execute(t, small("replay", traceFile(t, goodLine), "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	mine := filepath.Join(dir, "quarantine", "mine")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mine), 0o700), os.WriteFile(mine, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := execute(t, "store", "gc", "--quarantine", dir)
	_, row, _ := strings.Cut(stdout, "  stays        ")
	path, command, _ := strings.Cut(row, ": foreign; ")
	command, found := strings.CutSuffix(command, " removes it\n")
	if code != exitOK || path != strconv.Quote(mine) || !found {
		t.Fatalf("exit code %d: %s; %s", code, stdout, stderr)
	}
	typesInBash(t, command, "kvlane", "store", "gc", "--foreign", dir)
}

func TestAgeText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 999 * time.Millisecond: "now", time.Second: "1s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 2 * time.Hour: "2h",
		47*time.Hour + 59*time.Minute: "47h", 48 * time.Hour: "2d", 1000 * 24 * time.Hour: "1000d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
