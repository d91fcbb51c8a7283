package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/internal/testkit"
)

// A C program uses all functions of the library, with valid and invalid arguments.
func TestProgramInC(t *testing.T) {
	testkit.SkipRace(t, "the C library that it builds has no race detector")
	if _, err := exec.LookPath("cc"); err != nil {
		testkit.Skip(t, "cc", err.Error())
	}
	for _, standard := range []string{"c99", "c17"} {
		run(t, exec.Command("cc", "-std="+standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "kvlane.h"))
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-o", filepath.Join(dir, "libkvlane.so"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CC=cc")
	run(t, build)
	program := filepath.Join(dir, "use")
	run(t, exec.Command("cc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-I.", "-o", program,
		filepath.Join("testdata", "use.c"), "-L"+dir, "-lkvlane", "-lpthread", "-Wl,-rpath,"+dir))
	if out := run(t, exec.Command(program, string(kvlane.Host), filepath.Join(dir, "blocks"))); !strings.HasSuffix(out, "ok\n") {
		t.Error(out)
	} else {
		t.Log(out)
	}
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

func header(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("kvlane.h")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The header's constants equal those of the library.
func TestHeaderAgreesWithTheLibrary(t *testing.T) {
	text := header(t)
	want := map[string]int64{
		"KVL_OK": int64(capi.OK), "KVL_PENDING": int64(capi.Pending), "KVL_INVALID": int64(capi.Invalid), "KVL_NOT_FOUND": int64(capi.NotFound),
		"KVL_EXISTS": int64(capi.Exists), "KVL_NOT_SUPPORTED": int64(capi.NotSupported), "KVL_BUSY": int64(capi.Busy),
		"KVL_NO_MEMORY": int64(capi.NoMemory), "KVL_NO_SPACE": int64(capi.NoSpace), "KVL_READ_ONLY": int64(capi.ReadOnly),
		"KVL_CORRUPT": int64(capi.Corrupt), "KVL_MISMATCH": int64(capi.Mismatch), "KVL_CANCELED": int64(capi.Canceled),
		"KVL_EXPIRED": int64(capi.Expired), "KVL_CLOSED": int64(capi.Closed), "KVL_BROKEN": int64(capi.Broken),
		"KVL_FORKED": int64(capi.Forked), "KVL_FAILED": int64(capi.Failed),
		"KVL_IN_MEMORY": int64(capi.InMemory), "KVL_IN_FILES": int64(capi.InFiles),
		"KVL_HOST": 0, "KVL_DEVICE": 1,
		"KVL_LAYERWISE": int64(capi.Layerwise), "KVL_AWAITED": int64(capi.Awaited),
		"KVL_PROMOTE": int64(capi.Promote), "KVL_BYPASS": int64(capi.Bypass), "KVL_POOLED": int64(capi.Pooled),
		"KVL_ABSENT": int64(capi.Absent), "KVL_UNDER_WAY": int64(capi.UnderWay), "KVL_THERE": int64(capi.There), "KVL_BELOW": int64(capi.Below), "KVL_REMOTE": int64(capi.Remote),
		"KVL_DONE": int64(capi.Done), "KVL_SOURCE_FREE": int64(capi.SourceFree), "KVL_PUBLISHED": int64(capi.Published),
		"KVL_EVENT_LOST": int64(kvlane.EventLost), "KVL_EVENT_STORED": int64(kvlane.EventStored), "KVL_EVENT_REMOVED": int64(kvlane.EventRemoved),
		"KVL_KEY_BYTES": block.KeyBytes, "KVL_HASH_BYTES": block.HashBytes,
		"KVL_ABI": 3, "KVL_FOREVER": -1,
	}
	got := make(map[string]int64)
	for _, m := range regexp.MustCompile(`(?m)^(?:  |#define )(KVL_[A-Z_]+)(?: = | )\(?(-?\d+)u?\)?`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		got[m[1]] = n
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %d in the header, and %d in the library", name, got[name], n)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s of the header is not known here", name)
		}
	}
}

// Every function in the header that returns a status uses CALL, which detects a child of fork().
func TestEveryFunctionAnswersAfterFork(t *testing.T) {
	b, err := os.ReadFile("kvlane.c")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^kvl_status (kvl_[a-z_]+)\(`).FindAllStringSubmatch(header(t), -1)
	if len(declared) < 20 {
		t.Fatalf("%d functions were found in the header", len(declared))
	}
	for _, m := range declared {
		if !regexp.MustCompile(`(?s)\nkvl_status ` + m[1] + `\([^{]*\) \{\s*CALL\(`).Match(b) {
			t.Errorf("%s does not begin with CALL", m[1])
		}
	}
}

// The lines of the header are not too long.
func TestHeaderIsReadable(t *testing.T) {
	for i, line := range strings.Split(header(t), "\n") {
		if len(line) > 130 {
			t.Errorf("line %d has %d characters", i+1, len(line))
		}
	}
}
