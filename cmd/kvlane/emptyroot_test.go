package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// emptyRoot is a folder that commands have as their root directory: in it are the programs that it was made with and what they load, /proc, /sys and
// /dev of this machine, and what is mounted, with all that is in it. They have no network.
type emptyRoot struct {
	dir    string
	mounts []string // FROM and TO, in turn
	env    []string
}

// everywhere are the programs that every container of Linux has.
var everywhere = []string{"bash", "sh", "cat", "cp", "date", "env", "install", "ls", "mkdir", "mv", "rm", "sha256sum", "uname"}

// newEmptyRoot makes one with the programs that are everywhere, and more. Whoever has mounted what there is to be calls probe.
func newEmptyRoot(t *testing.T, programs ...string) *emptyRoot {
	t.Helper()
	r := &emptyRoot{dir: t.TempDir(), env: []string{"PATH=/bin", "HOME=/root", "TERM=xterm"}}
	for _, folder := range []string{"proc", "sys", "dev"} {
		r.mount(t, "/"+folder, "/"+folder)
	}
	for _, folder := range []string{"bin", "tmp", "root"} {
		r.mkdir(t, folder)
	}
	for _, p := range append(everywhere, programs...) {
		path, err := exec.LookPath(p)
		if err != nil {
			testkit.Skip(t, p, err.Error())
		}
		r.copy(t, path, "/bin/"+p)
		r.libraries(t, path)
	}
	var glibc []string
	for _, place := range []string{"lib*/*/libc.so.6", "lib*/libc.so.6"} { // Debian's, and others'
		found, err := filepath.Glob(filepath.Join(r.dir, place))
		if err != nil {
			t.Fatal(err)
		}
		glibc = append(glibc, found...)
	}
	if len(glibc) != 1 {
		testkit.Skip(t, "ldd", fmt.Sprintf("glibc is in %q", glibc))
	}
	for _, part := range []string{"libdl.so.2", "libpthread.so.0", "libm.so.6"} {
		path := filepath.Join(strings.TrimPrefix(filepath.Dir(glibc[0]), r.dir), part)
		r.copy(t, path, path)
	}
	return r
}

// probe ends the test where nothing can run in the root with all its mounts.
func (r *emptyRoot) probe(t *testing.T) {
	t.Helper()
	if out, code := r.run(t, "/", "true"); code != 0 {
		testkit.Skip(t, "namespaces", "a process of its own root cannot be made here: "+out)
	}
}

func (r *emptyRoot) mkdir(t *testing.T, path string) string {
	t.Helper()
	path = filepath.Join(r.dir, path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// mount has the folder from be there as to. The test ends where this machine has no such folder.
func (r *emptyRoot) mount(t *testing.T, from, to string) {
	t.Helper()
	if _, err := os.Stat(from); err != nil {
		testkit.Skip(t, to, err.Error())
	}
	r.mounts = append(r.mounts, from, r.mkdir(t, to))
}

// copy has the file from be there as to. The test ends where this machine has none that can be read.
func (r *emptyRoot) copy(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		testkit.Skip(t, filepath.Base(from), err.Error())
	}
	r.mkdir(t, filepath.Dir(to))
	if err := os.WriteFile(filepath.Join(r.dir, to), b, 0o700); err != nil {
		t.Fatal(err)
	}
}

var libraryPaths = regexp.MustCompile(`/\S+`)

// libraries copies what a program loads when it starts, or nothing for one that is linked statically.
func (r *emptyRoot) libraries(t *testing.T, program string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", program).Output()
	if errors.Is(err, exec.ErrNotFound) {
		testkit.Skip(t, "ldd", err.Error())
	}
	for line := range strings.Lines(string(out)) {
		path := libraryPaths.FindString(strings.TrimPrefix(strings.TrimSpace(line), program))
		if _, err := os.Lstat(filepath.Join(r.dir, path)); path != "" && err != nil && !strings.HasSuffix(path, ":") {
			r.copy(t, path, path)
		}
	}
}

// run runs a line of bash in the folder dir and returns what it printed, on either stream, and its exit code.
func (r *emptyRoot) run(t *testing.T, dir, line string, env ...string) (string, int) {
	t.Helper()
	var out strings.Builder
	code := r.start(t, &out, dir, line, env...)
	return out.String(), code
}

// inRoot mounts what its arguments say, up to --, then becomes the rest, with no environment but what that begins with.
const inRoot = `set -e
while [[ $1 != -- ]]; do mount --rbind "$1" "$2"; shift 2; done; shift
exec env -i "$@"`

// start is run with the output going to w, which may be a terminal.
func (r *emptyRoot) start(t *testing.T, w io.Writer, dir, line string, env ...string) int {
	t.Helper()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		testkit.Skip(t, "namespaces", err.Error())
	}
	args := append([]string{"--user", "--map-root-user", "--mount", "--net", "bash", "-c", inRoot, "empty-root"}, r.mounts...)
	args = append(append(append(args, "--"), r.env...), env...)
	args = append(args, unshare, "--root", r.dir, "/bin/bash", "-e", "-c", `cd "$1"; eval "$2"`, "bash", dir, line)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, unshare, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, w, 10*time.Second
	// When the time is over, all that the line has started ends: a terminal is read for as long as one of them has it open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s: %v", line, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		testkit.Skip(t, "namespaces", err.Error())
	}
	return cmd.ProcessState.ExitCode()
}
