package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// trial is a new user's terminal in an empty root. It records the typed lines and their output.
type trial struct {
	root    *emptyRoot
	columns int  // width of the terminal, or the COLUMNS of a pipe; 0 is unlimited
	piped   bool // output goes to a pipe instead of a terminal
	noColor bool
	typed   []transcript
}

// transcript is a typed line and its output. The output ends with the exit code if that is not 0.
type transcript struct{ line, answer string }

// typeIn runs a line in the folder /root/kvlane and records its output.
func (u *trial) typeIn(t *testing.T, line string) {
	t.Helper()
	var env []string
	if u.noColor {
		env = append(env, "NO_COLOR=1")
	}
	var shown string
	var code int
	command := strings.ReplaceAll(line, "-amd64", "-"+runtime.GOARCH)
	if u.piped {
		if u.columns > 0 {
			env = append(env, fmt.Sprintf("COLUMNS=%d", u.columns))
		}
		shown, code = u.root.run(t, "/root/kvlane", command, env...)
	} else {
		tty, written := testkit.Terminal(t, u.columns)
		code = u.root.start(t, tty, "/root/kvlane", command, env...)
		shown = written()
	}
	plain := colors.ReplaceAllString(shown, "")
	if wanted := !u.piped && !u.noColor && strings.Contains(shown, "✓"); wanted != (plain != shown) {
		t.Errorf("%s: colors are expected to be there: %v:\n%q", line, wanted, shown)
	}
	if u.columns > 0 {
		presenttest.Fits(t, strings.ReplaceAll(untabled.ReplaceAllString(plain, ""), "\r", "\n"), u.columns)
	}
	plain = overwritten.ReplaceAllString(plain, "")
	if code != exitOK {
		plain += fmt.Sprintf("[exit code %d]\n", code)
	}
	u.typed = append(u.typed, transcript{line, mask(plain)})
}

var (
	colors = regexp.MustCompile("\x1b\\[[0-9;]*m")
	// Commands that make runs and reasons of errors are one line each, whatever their length.
	untabled = regexp.MustCompile(`(?m)^(go build|kvlane: ).*\n`)
	// Text that a progress bar has overwritten.
	overwritten = regexp.MustCompile(`(?m)^.*\r`)
)

// masks replace text that differs between runs or machines: times, numbers that depend on times,
// and hardware.
var masks = []struct {
	was *regexp.Regexp
	is  string
}{
	{regexp.MustCompile(`\d[\d,.]*\s+(ns|µs|ms|s|min)\b|\b(\d+h)?\d+m\d+s\b`), "<time>"},
	{regexp.MustCompile(`\d[\d,.]*\s+a\s+second`), "<number> a second"},
	{regexp.MustCompile(`((?:Dumps|Loads):)(?s:.*?)\.\n`), "$1 <bytes by path>.\n"},
	{regexp.MustCompile(`[\d,]+\s+from\s+files,\s+[\d,]+\s+from\s+the\s+cache`), "<blocks> from files, <blocks> from the cache"},
	{regexp.MustCompile(`(\nCopies by path\n.*\n)(?s:.*?)\n\n`), "$1  <paths>\n\n"},
	{regexp.MustCompile(`(?m)^(  [a-z]  +\S.*\n(    +\S.*\n)*)+`), "  <reasons>\n"},
	{regexp.MustCompile(`checksums\s+of\s+\d+\s+verified\s+by\s+copies,\s+of\s+\d+\s+by\s+the\s+CPU`), "checksums of <blocks> verified by copies, of <blocks> by the CPU"},
	{regexp.MustCompile(`(?m)^(go: downloading .*\n)+`), "go: downloading <modules>\n"},
	{regexp.MustCompile(`kvlane-\d[\d.]*`), "kvlane-<version>"},
	{regexp.MustCompile(`(\nMachine\n)(?s:.*?)\n\n`), "$1  <facts>\n\n"},
	{regexp.MustCompile(`(\n  directory  .*\n)(?s:.*?)\n\n`), "$1  <directories>\n\n"},
}

func mask(text string) string {
	for _, m := range masks {
		text = m.was.ReplaceAllString(text, m.is)
	}
	return text
}

// mask replaces every time by the same text, except 0.
func TestMaskHidesTimes(t *testing.T) {
	for _, d := range []time.Duration{1, 1500, 22 * time.Millisecond, 59 * time.Second, 59500 * time.Millisecond, 82 * time.Second, 2 * time.Hour, 30*time.Hour + time.Second} {
		if got := mask("in " + present.Duration(d) + "."); got != "in <time>." {
			t.Errorf("%v: %q", d, got)
		}
	}
}

// compare compares the recorded lines with a golden file, or rewrites that file. It ignores line
// breaks and column widths, because both depend on the lengths of times.
func (u *trial) compare(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join("testdata", "front-"+name+".txt")
	if *rewrite {
		var all strings.Builder
		for _, e := range u.typed {
			fmt.Fprintf(&all, "$ %s\n%s", e.line, e.answer)
		}
		if err := os.WriteFile(file, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Split("\n"+string(golden), "\n$ ")[1:]
	for i, e := range u.typed {
		if i >= len(wanted) || !strings.HasPrefix(wanted[i]+"\n", e.line+"\n") {
			t.Fatalf("%s has not %q at this place; go test -rewrite makes it anew", file, e.line)
		}
		want := strings.TrimPrefix(wanted[i], e.line)
		if diff := cmp.Diff(strings.Fields(want), strings.Fields(e.answer)); diff != "" && (matchesGolden() || !strings.Contains(e.line, "kvlane doctor")) {
			t.Errorf("%s: %s differs, -want +got; go test -rewrite makes it anew:\n%s\nIt was:\n%s", file, e.line, diff, e.answer)
		}
	}
	if len(wanted) > len(u.typed) {
		t.Errorf("%s has more: %q", file, wanted[len(u.typed):])
	}
}

// matchesGolden reports whether this machine has the hardware of the golden files: io_uring, no GPU
// and no NIC.
var matchesGolden = sync.OnceValue(func() bool {
	r := doctor.Examine(context.Background(), doctor.Local(askCUDA, askCuFile, loadable), doctor.Options{})
	return r.IOUring.Answer == doctor.Yes && len(r.NVIDIA.OnBus) == 0 && len(r.RDMA.Devices) == 0
})

// trace puts the user's trace into the folder, and removes the files of the previous trial.
func (u *trial) trace(t *testing.T) {
	t.Helper()
	dir := u.root.mkdir(t, "/root/kvlane")
	if err := os.RemoveAll(filepath.Join(dir, "DIR")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "TRACE.jsonl"), []byte(goodLine+goodLine), 0o600); err != nil {
		t.Fatal(err)
	}
}

// In a clone with only Go and make, the lines of the README work. The test leaves out the lines
// that make the release and the wheel or run the tests.
func TestDistInACloneWithGoAndMake(t *testing.T) {
	from, _ := dist(t)
	u := &trial{root: newEmptyRoot(t, "make"), piped: true}
	clone := u.root.mkdir(t, "/root/kvlane")
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", "--no-tags", "../..", clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	u.root.libraries(t, filepath.Join(goEnv(t, "GOROOT"), "bin/go"))
	u.root.mount(t, goEnv(t, "GOROOT"), "/usr/local/go")
	u.root.mount(t, goEnv(t, "GOCACHE"), "/var/cache/go")
	u.root.mount(t, filepath.Join(goEnv(t, "GOMODCACHE"), "cache/download"), "/var/cache/modules") // replaces the network
	u.root.mount(t, from, "/root/kvlane/bin/dist")
	u.root.probe(t)
	u.root.env = append(u.root.env, "PATH=/bin:/usr/local/go/bin", "GOCACHE=/var/cache/go", "GOPROXY=file:///var/cache/modules",
		"GOSUMDB=off", "GOTOOLCHAIN=local", "GOFLAGS=-modcacherw -trimpath") // the same flags as make dist, so that the build cache is reused
	u.trace(t)
	for _, line := range append(readmeLines(t, "../..", "Install"), readmeLines(t, "../..", "Try it")...) {
		if line == "make dist" || line == "make wheel" || strings.HasPrefix(line, "make test ") || strings.HasPrefix(line, "pip ") {
			continue
		}
		u.typeIn(t, line)
	}
	u.typeIn(t, "ls ~/.local/bin ~/go/bin")
	u.compare(t, "clone")
}

// With only the files of make dist, the lines of the README work at each width, on terminals and
// pipes, with colors and without.
func TestDistAlone(t *testing.T) {
	from, _ := dist(t)
	root := newEmptyRoot(t)
	root.mount(t, from, "/root/kvlane/bin/dist")
	root.probe(t)
	root.env = append(root.env, "PATH=/bin:/root/.local/bin")
	for _, screen := range []struct {
		name    string
		columns int
		piped   bool
	}{
		{"80", 80, false}, {"80", 80, true}, {"200", 200, false}, {"200", 200, true}, {"piped", 0, true},
	} {
		for _, noColor := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d columns, piped %v, NO_COLOR %v", screen.columns, screen.piped, noColor), func(t *testing.T) {
				u := &trial{root: root, columns: screen.columns, piped: screen.piped, noColor: noColor}
				u.trace(t)
				for _, line := range readmeLines(t, "../..", "Install") {
					if onDist(line) {
						u.typeIn(t, line)
					}
				}
				for _, line := range readmeLines(t, "../..", "Try it") {
					if args, ok := strings.CutPrefix(line, "bin/kvlane "); ok {
						u.typeIn(t, "kvlane "+args)
					}
				}
				u.compare(t, "dist-"+screen.name)
			})
		}
	}
}

// The lines of the README for the wheel work with only the wheel and Python's own prefix. If that
// prefix is /usr, as for a distribution's Python, all of /usr is mounted.
func TestDistWheel(t *testing.T) {
	wheels := os.Getenv("KVLANE_WHEEL")
	if wheels == "" {
		testkit.Skip(t, "wheel", "KVLANE_WHEEL names no directory, as make python does")
	}
	if found, err := filepath.Glob(filepath.Join(wheels, "kvlane-*.whl")); len(found) != 1 {
		t.Fatalf("%s does not contain exactly one wheel: %q, %v", wheels, found, err)
	}
	python, err := exec.CommandContext(t.Context(), "python3", "-c", `import os, sys; print(sys.base_prefix, os.path.realpath(sys.executable), sep="\n")`).Output()
	if err != nil {
		testkit.Skip(t, "wheel", "python3: "+err.Error())
	}
	prefix, binary, _ := strings.Cut(strings.TrimSpace(string(python)), "\n")
	u := &trial{root: newEmptyRoot(t), piped: true}
	u.root.mount(t, prefix, prefix)
	u.root.mount(t, wheels, "/root/kvlane/bin/wheel")
	u.root.libraries(t, binary)
	modules, err := filepath.Glob(filepath.Join(prefix, "lib/python3*/lib-dynload/*.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		u.root.libraries(t, m)
	}
	u.root.probe(t)
	if out, code := u.root.run(t, "/", binary+" -m venv ~/env"); code != 0 {
		testkit.Skip(t, "wheel", "no virtual environment: "+out)
	}
	u.root.env = append(u.root.env, "PATH=/root/env/bin:/bin", "PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	for _, line := range readmeLines(t, "../..", "Install") {
		if strings.HasPrefix(line, "pip ") {
			u.typeIn(t, line)
		}
	}
	u.typeIn(t, "kvlane doctor --require posix --json >/dev/null && python -m kvlane doctor --require posix --json >/dev/null && ls ~/env/bin/kvlane")
	u.compare(t, "wheel")
}
