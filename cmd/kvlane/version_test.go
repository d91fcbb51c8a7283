package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// The version is read from the build information, whatever tool built the binary.
func TestVersionOfEveryWayToBuild(t *testing.T) {
	const rev, when = "653bc7e0123456789abcdef0123456789abcdef0", "2026-11-22T07:19:38Z"
	module := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: version}}
	}
	tree := func(version, modified string) *debug.BuildInfo {
		info := module(version)
		info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: rev}, {Key: "vcs.time", Value: when}, {Key: "vcs.modified", Value: modified}}
		return info
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want release
		tag  string
	}{
		"go install of a release": {module("v1.2.3"), release{Version: "v1.2.3"}, "v1.2.3"},
		"go install of a candidate": {
			module("v1.2.4-rc.1"), release{Version: "v1.2.4-rc.1"}, "v1.2.4-rc.1",
		},
		"go install of a commit": {
			module("v0.0.0-20261122071938-653bc7e01234"),
			release{Version: "v0.0.0-20261122071938-653bc7e01234", Commit: rev[:12], CommitDate: when},
			"(devel)",
		},
		"go install of a commit after a release": {
			module("v1.2.4-0.20261122071938-653bc7e01234"),
			release{Version: "v1.2.4-0.20261122071938-653bc7e01234", Commit: rev[:12], CommitDate: when},
			"(devel)",
		},
		"go build of a release": {tree("v1.2.3", "false"), release{Version: "v1.2.3", Commit: rev, CommitDate: when}, "v1.2.3"},
		"go build with changes": {
			tree("v1.2.3+dirty", "true"), release{Version: "v1.2.3+dirty", Commit: rev, CommitDate: when, Modified: true}, "(devel)",
		},
		"go build of a commit with changes": {
			tree("v1.2.4-0.20261122071938-653bc7e01234+dirty", "true"),
			release{Version: "v1.2.4-0.20261122071938-653bc7e01234+dirty", Commit: rev, CommitDate: when, Modified: true},
			"(devel)",
		},
		"go build without git": {module("(devel)"), release{Version: "(devel)"}, "(devel)"},
		"go run":               {module(""), release{Version: "(devel)"}, "(devel)"},
	} {
		c.want.Go, c.want.OS, c.want.Arch = "go1.26.0", runtime.GOOS, runtime.GOARCH
		if got := releaseOf(c.info, true); got != c.want || got.tag() != c.tag {
			t.Errorf("%s: %+v, tag %q; want %+v, %q", name, got, got.tag(), c.want, c.tag)
		}
	}
	if got := releaseOf(nil, false); got.Version != "(devel)" || got.Go != runtime.Version() {
		t.Errorf("without a record: %+v", got)
	}
}

// The version command and the --version flag print the same text, and JSON contains all its fields.
func TestVersionCommandAndFlagAgree(t *testing.T) {
	code, text, stderr := execute(t, "version")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if _, flag, _ := execute(t, "--version"); flag != text {
		t.Errorf("--version prints\n%s\nand version\n%s", flag, text)
	}
	_, stdout, _ := execute(t, "version", "--json")
	var r release
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.String() != text {
		t.Errorf("%v, JSON\n%s\nand text\n%s", err, r.String(), text)
	}
	for _, want := range []string{"kvlane " + r.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, "build date:   not recorded"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
}

// The build time that make build passes to the linker is in the binary.
func TestVersionHasItsBuildTime(t *testing.T) {
	testkit.SkipRace(t, "the binary that it builds has no race detector")
	if _, err := exec.LookPath("make"); err != nil {
		testkit.Skip(t, "make", err.Error())
	}
	bin := t.TempDir()
	build := exec.Command("make", "-s", "-C", "../..", "build", "BIN="+bin)
	build.Env = append(build.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(bin, "kvlane"), "version", "--json").Output()
	var r release
	if err != nil || json.Unmarshal(out, &r) != nil || r.BuildDate != "2023-11-14T22:13:20Z" {
		t.Errorf("%v, built %q:\n%s", err, r.BuildDate, out)
	}
}
