package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// Reports fit the width of the terminal and use color only if enabled. The test runs the commands,
// so that it covers real figures.
func TestReportsKeepToTheScreen(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "examples", "runs the commands of the examples, which takes half a minute; not with -short")
	}
	t.Setenv("TERM", "xterm")
	dir := t.TempDir()
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"kvlane"} // reports contain the command line
	trace := traceFile(t, goodLine+goodLine)
	t.Chdir(dir) // so that no name is longer than a line
	escapes := regexp.MustCompile("\x1b\\[[0-9;]*m")
	slow := func(name string) bool { return strings.HasPrefix(name, "bench ") }
	for name, args := range map[string][]string{
		"replay":      small("replay", trace, "--layerwise", "--file-dir", "blocks", "--speed", "1000", "--threshold", "hit_rate>0"),
		"doctor":      {"doctor", "--dir", dir, "--require", "posix"},
		"bench copy":  {"bench", "copy", "--device", "sim", "--bytes", "64KiB", "--pool", "256KiB", "--large", "128KiB", "--sizes", "4KiB,16KiB,64KiB", "--reps", "1"},
		"bench store": tinyStore("--blocks", "1", "--work", "load", "--forms", "whole"),
		"bench file":  tinyFile(dir, "--work", "read", "--from", "page-cache", "--budget", "20s"),
		"calibrate":   {"calibrate", "--device", "sim", "--memory", "1MiB", "--budget", "20ms", "--profile-dir", "p", "--full"},
	} {
		for _, columns := range []int{80, 200} {
			for _, noColor := range []string{"", "1"} {
				if slow(name) && (columns != 80 || noColor != "") {
					continue // once only, because it is slow
				}
				t.Run(fmt.Sprintf("%s at %d, NO_COLOR=%s", name, columns, noColor), func(t *testing.T) {
					t.Setenv("NO_COLOR", noColor)
					t.Setenv("COLUMNS", "")
					tty, written := testkit.Terminal(t, columns)
					var errs bytes.Buffer
					if code := run(t.Context(), args, tty, &errs); code != exitOK {
						t.Fatalf("exit code %d: %s", code, &errs)
					}
					shown := written()
					if (noColor == "") != escapes.MatchString(shown) {
						t.Errorf("NO_COLOR=%s:\n%q", noColor, shown)
					}
					presenttest.Fits(t, escapes.ReplaceAllString(shown, ""), columns)
					if !strings.Contains(shown, "✓") {
						t.Errorf("the report has no verdict:\n%s", shown)
					}
				})
			}
		}
		if slow(name) {
			continue
		}
		t.Setenv("NO_COLOR", "")
		t.Setenv("COLUMNS", "80")
		code, stdout, stderr := execute(t, args...)
		if code != exitOK {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
		presenttest.Fits(t, stdout, 80)
	}
}
