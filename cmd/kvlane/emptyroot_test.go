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

// emptyRoot is a folder that commands use as their root directory. It contains the given programs
// with their libraries, /proc, /sys and /dev of this machine, and further mounts. The commands have
// no network.
type emptyRoot struct {
	dir    string
	mounts []string // pairs of source and target
	env    []string
}

// everywhere lists the programs that every Linux container has.
var everywhere = []string{"bash", "sh", "cat", "cp", "date", "env", "install", "ls", "mkdir", "mv", "rm", "sha256sum", "uname"}

// newEmptyRoot returns an emptyRoot with the programs in everywhere and the given ones. The caller
// calls probe after its last mount.
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
	for _, place := range []string{"lib*/*/libc.so.6", "lib*/libc.so.6"} { // Debian and others
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

// probe skips the test if no process can run in the root with all its mounts.
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

// mount mounts the folder from as to. It skips the test if this machine has no such folder.
func (r *emptyRoot) mount(t *testing.T, from, to string) {
	t.Helper()
	if _, err := os.Stat(from); err != nil {
		testkit.Skip(t, to, err.Error())
	}
	r.mounts = append(r.mounts, from, r.mkdir(t, to))
}

// copy copies the file from to to. It skips the test if this machine cannot read from.
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

// libraries copies the libraries that a program loads, if any.
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

// run runs a line of bash in the folder dir. It returns the output of both streams and the exit
// code.
func (r *emptyRoot) run(t *testing.T, dir, line string, env ...string) (string, int) {
	t.Helper()
	var out strings.Builder
	code := r.start(t, &out, dir, line, env...)
	return out.String(), code
}

// inRoot mounts the pairs of folders before --, and then runs the command after it with an empty
// environment.
const inRoot = `set -e
while [[ $1 != -- ]]; do mount --rbind "$1" "$2"; shift 2; done; shift
exec env -i "$@"`

// start is run with its output going to w, which may be a terminal.
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
	// At the timeout all processes of the line are killed, because the terminal is read until the
	// last of them closes it.
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
