package main

import (
	"context"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// dist returns the directory that `make dist` has filled, and the version that it built.
func dist(t *testing.T) (dir, version string) {
	t.Helper()
	dir = os.Getenv("KVLANE_DIST")
	if dir == "" {
		testkit.Skip(t, "dist", "KVLANE_DIST names no directory, as make dist does")
	}
	list, err := os.ReadFile(filepath.Join(dir, "proxy/github.com/kvlane/kvlane/@v/list"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, strings.TrimSpace(string(list))
}

// Each binary is built for the architecture in its name. It needs only libraries of glibc that are
// used to open others, without version requirements.
func TestDistBinaries(t *testing.T) {
	dir, _ := dist(t)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		f, err := elf.Open(filepath.Join(dir, "kvlane-linux-"+arch))
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Error(err)
		}
		symbols, err := f.ImportedSymbols()
		if err != nil || len(symbols) == 0 {
			t.Errorf("%d symbols, %v", len(symbols), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if f.Machine != machine {
			t.Errorf("%s: it is for %v", arch, f.Machine)
		}
		for _, l := range libraries {
			if !slices.Contains([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0"}, l) {
				t.Errorf("%s: it needs %s", arch, l)
			}
		}
		for _, s := range symbols {
			if s.Version != "" {
				t.Errorf("%s: it needs %s of %s", arch, s.Name, s.Version)
			}
		}
	}
}

// The binary of this machine reports its build time: the time of the commit, or SOURCE_DATE_EPOCH.
func TestDistHasItsBuildTime(t *testing.T) {
	dir, version := dist(t)
	out, err := exec.Command(filepath.Join(dir, "kvlane-linux-"+runtime.GOARCH), "version", "--json").Output()
	var r release
	if err != nil || json.Unmarshal(out, &r) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := r.CommitDate
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		epoch, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		want = time.Unix(epoch, 0).UTC().Format(time.RFC3339)
	}
	if r.Version != version || r.BuildDate == "" || r.BuildDate != want {
		t.Errorf("%s, built %s; want %s and %s", r.Version, r.BuildDate, version, want)
	}
}

// The install lines of the README work literally, in an empty home directory.
func TestDistInstallLines(t *testing.T) {
	dir, version := dist(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if dir != filepath.Join(root, "bin/dist") {
		testkit.Skip(t, "dist", "the README's lines are about bin/dist, not "+dir)
	}
	home := t.TempDir()
	modules := goEnv(t, "GOMODCACHE")
	// The Go module cache of this machine serves the dependencies, which were checked against
	// go.sum before. kvlane itself must not come from there.
	env := append(os.Environ(), "HOME="+home, "GOPATH=", "GOBIN=", "GOMODCACHE=", "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off", "CGO_ENABLED=0",
		"GOCACHE="+goEnv(t, "GOCACHE"), "GOPROXY=file://"+modules+"/cache/download,"+goEnv(t, "GOPROXY"))
	for _, line := range readmeLines(t, root, "Install") {
		if !onDist(line) && !strings.Contains(line, " go install ") {
			continue
		}
		if out, err := shell(t, root, env, strings.ReplaceAll(line, "amd64", runtime.GOARCH)); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	for _, installed := range []string{".local/bin/kvlane", "go/bin/kvlane"} {
		out, err := shell(t, home, env, "./"+installed+" --version")
		if want := "kvlane " + version + "\n"; err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %v, %q; want %q", installed, err, out, want)
		}
	}
	out, err := shell(t, home, env, ". .local/share/bash-completion/completions/kvlane; complete -p kvlane")
	if err != nil || !strings.Contains(out, "-F __start_kvlane kvlane") {
		t.Errorf("completion of bash: %v, %q", err, out)
	}
}

// readmeLines returns the commands in a section of the README.
func readmeLines(t *testing.T, root, title string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## "+title+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, strings.TrimSpace(command))
		}
	}
	if len(lines) < 4 {
		t.Fatalf("under %q the README has %q", title, lines)
	}
	return lines
}

// onDist reports whether a line uses only files made by make dist.
func onDist(line string) bool {
	return strings.Contains(line, "bin/dist") && !strings.Contains(line, " go install ")
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// shell runs a command and returns its output.
func shell(t *testing.T, dir string, env []string, command string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", command)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, 10*time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
