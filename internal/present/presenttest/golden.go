// Package presenttest checks the layout of reports at two widths, for pipes and terminals.
package presenttest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/internal/testkit"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Check compares a report with testdata/name-80.txt and name-200.txt, or rewrites these files. It
// checks the output to a pipe with COLUMNS, to a terminal with NO_COLOR, and to a terminal with
// colors, which it ignores. It also checks the width of lines. It sets environment variables, so
// tests that use it cannot run in parallel.
func Check(t *testing.T, name string, rewrite bool, write func(io.Writer) error) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	for _, columns := range []int{80, 200} {
		t.Setenv("COLUMNS", fmt.Sprint(columns))
		t.Setenv("NO_COLOR", "")
		var piped bytes.Buffer
		if err := write(&piped); err != nil {
			t.Fatal(err)
		}
		Fits(t, piped.String(), columns)
		golden(t, fmt.Sprintf("%s-%d.txt", name, columns), rewrite, piped.String())

		t.Setenv("COLUMNS", "")
		colored := onTerminal(t, columns, write)
		t.Setenv("NO_COLOR", "1")
		plain := onTerminal(t, columns, write)
		if diff := cmp.Diff(piped.String(), plain); diff != "" {
			t.Errorf("a terminal of %d columns with NO_COLOR shows something else, -piped +shown:\n%s", columns, diff)
		}
		if !escapes.MatchString(colored) {
			t.Errorf("a terminal of %d columns has no colors:\n%s", columns, colored)
		}
		if diff := cmp.Diff(piped.String(), escapes.ReplaceAllString(colored, "")); diff != "" {
			t.Errorf("a terminal of %d columns shows something else but for colors, -piped +shown:\n%s", columns, diff)
		}
	}
}

// Fits checks that no line of text is wider than columns, and that there are no escape sequences.
func Fits(t *testing.T, text string, columns int) {
	t.Helper()
	if strings.Contains(text, "\x1b") {
		t.Errorf("there are escape sequences:\n%q", text)
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("a line has %d columns of %d:\n%s", n, columns, line)
		}
	}
}

func onTerminal(t *testing.T, columns int, write func(io.Writer) error) string {
	t.Helper()
	tty, written := testkit.Terminal(t, columns)
	if err := write(tty); err != nil {
		t.Fatal(err)
	}
	return written()
}

func golden(t *testing.T, name string, rewrite bool, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if rewrite {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs, -want +got; go test -rewrite makes it anew:\n%s", path, diff)
	}
}
