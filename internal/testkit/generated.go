package testkit

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write generated files in place of comparing them")

// Generated fails the test if the contents of file differ from text. With the flag -update it
// writes the file.
func Generated(tb testing.TB, file, text string) {
	tb.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
		return
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != text {
		tb.Errorf("%s is not up to date (%v): run make generate", file, err)
	}
}
