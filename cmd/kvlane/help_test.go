package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// The help of each command fits the width of the terminal, and has the words of the help without a
// width.
func TestHelpFitsTheTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("COLUMNS", "")
	paths := []string{""}
	forEachCommand(func(path string, _ *cobra.Command) { paths = append(paths, path) })
	for _, path := range paths {
		args := append(strings.Fields(path), "--help")
		code, plain, stderr := execute(t, args...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, stderr)
		}
		for _, columns := range []int{80, 120} {
			tty, written := testkit.Terminal(t, columns)
			var errs strings.Builder
			if code := run(t.Context(), args, tty, &errs); code != exitOK {
				t.Fatalf("%v: exit code %d: %s", args, code, &errs)
			}
			shown := strings.ReplaceAll(written(), "\r", "")
			presenttest.Fits(t, shown, columns)
			if got, want := strings.Fields(strings.ReplaceAll(shown, " \\\n", "\n")), strings.Fields(plain); strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%v at %d columns has other words:\n%s", args, columns, shown)
			}
		}
	}
}

func TestFitText(t *testing.T) {
	in := `Remove the given kinds of files, no others:
and nothing else:

  --max-bytes    the coldest blocks, until so many
                 bytes of them are left
  --a            b

Examples:
  kvlane store gc /var/cache/kvlane --max-bytes 100GiB

Flags:
      --a-very-long-name string   a description of it
`
	want := `Remove the given kinds of files, no
others: and nothing else:

  --max-bytes    the coldest blocks,
                 until so many bytes of
                 them are left
  --a            b

Examples:
  kvlane store gc /var/cache/kvlane \
      --max-bytes 100GiB

Flags:
      --a-very-long-name string
            a description of it
`
	if got := fitText(in, 40); got != want {
		t.Errorf("got:\n%s", got)
	}
	if got := fitText(in, 400); got != in {
		t.Errorf("a wide terminal changes the text:\n%s", got)
	}
}
