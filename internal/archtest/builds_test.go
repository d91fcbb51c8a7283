package archtest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// dependencies returns the import paths of the packages that a build has. The arguments are
// flags and targets of go list.
func dependencies(t *testing.T, arguments ...string) map[string]bool {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-deps"}, arguments...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // cmd/libkvlane has its packages then; nothing is compiled
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	deps := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		deps[strings.TrimSpace(line)] = true
	}
	return deps
}

// TestBuildWithoutVerbs checks that a build with the tag nonic does not contain the libibverbs
// binding. `make nonic` checks that it builds.
func TestBuildWithoutVerbs(t *testing.T) {
	with, without := dependencies(t, "./cmd/kvlane"), dependencies(t, "-tags", "nonic", "./cmd/kvlane")
	for _, rel := range []string{"rdma/ibv", "internal/sys/ibverbs"} {
		path := module + "/" + rel
		if !with[path] {
			t.Errorf("the usual build does not have %s: the test looks for the wrong packages", rel)
		}
		if without[path] {
			t.Errorf("a build with the tag nonic has %s", rel)
		}
	}
}

// optional lists the modules that only these packages may import, so that programs that do not use the
// package do not contain them.
var optional = map[string]string{
	"google.golang.org/grpc":     "rpc/grpcrpc metadata/etcd",
	"google.golang.org/genproto": "rpc/grpcrpc",
	"go.opentelemetry.io":        "rpc/otelrpc telemetry/oteltrace",
	"go.etcd.io":                 "metadata/etcd",
}

// ofCommand are the optional modules that the command has, through metadata/etcd.
var ofCommand = []string{"google.golang.org/grpc", "google.golang.org/genproto", "go.etcd.io"}

// TestOptionalModules checks the imports of all files, tests included, and the packages in the
// command and in the library.
func TestOptionalModules(t *testing.T) {
	imported := make(map[string]bool)
	for _, f := range files(t) {
		for _, i := range f.ast.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			for prefix, owners := range optional {
				if path != prefix && !strings.HasPrefix(path, prefix+"/") {
					continue
				}
				imported[prefix] = true
				if !slices.Contains(strings.Fields(owners), folder(f.rel)) {
					t.Errorf("%s imports %s: only %s may", f.rel, path, owners)
				}
			}
		}
	}
	deps, command := dependencies(t, ".", "./cmd/libkvlane"), dependencies(t, "./cmd/kvlane")
	if !deps[module+"/internal/capi"] || !command["go.etcd.io/etcd/client/v3"] || !command["google.golang.org/protobuf/proto"] {
		t.Error("the list lacks packages that commands have")
	}
	for prefix, owner := range optional {
		if !imported[prefix] {
			t.Errorf("%s does not import %s: the test looks for the wrong packages", owner, prefix)
		}
		for path := range deps {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				t.Errorf("the library contains %s", path)
			}
		}
		for path := range command {
			if (path == prefix || strings.HasPrefix(path, prefix+"/")) && !slices.Contains(ofCommand, prefix) {
				t.Errorf("the command contains %s", path)
			}
		}
	}
}
