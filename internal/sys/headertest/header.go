// Package headertest compares bindings with the C headers that they are written from: it has a C compiler check what Go believes of
// layouts, constants and signatures. Where there is no header or no compiler, a change of a layout by mistake is found by a sum.
package headertest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Header is what a binding is compared with. The compiler finds it by itself, by C_INCLUDE_PATH, or where CUDA is installed.
type Header struct {
	Feature string // without which tests are skipped
	Include string // what is in front of each check
	Struct  bool   // its types are structures by tag
}

// Compiler returns a C compiler, or skips the test for the lack of feature.
func Compiler(t *testing.T, feature string) string {
	t.Helper()
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testkit.Skip(t, feature, "no C compiler")
	return ""
}

// Compile has C check the body of a translation unit, or skips the test where the header cannot be used.
func (h *Header) Compile(t *testing.T, body string) {
	t.Helper()
	cc := Compiler(t, h.Feature)
	check := func(body string) ([]byte, error) {
		src := filepath.Join(t.TempDir(), "check.c")
		// Headers declare functions that older C libraries do not have in strict modes.
		if err := os.WriteFile(src, []byte("#define _GNU_SOURCE\n#include <stddef.h>\n#include <stdint.h>\n"+h.Include+"\n"+body), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-std=gnu11", "-fsyntax-only", "-Werror"}
		for _, home := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
			if home != "" {
				args = append(args, "-I"+filepath.Join(home, "include"))
			}
		}
		return exec.CommandContext(t.Context(), cc, append(args, src)...).CombinedOutput()
	}
	if out, err := check(""); err != nil {
		testkit.Skip(t, h.Feature, fmt.Sprintf("%s cannot use %s: %s", cc, h.Include, firstLines(out, 2)))
	}
	if out, err := check(body); err != nil {
		t.Errorf("%s: %v\n%s", cc, err, firstLines(out, 40))
	}
}

func firstLines(b []byte, n int) []byte {
	lines := bytes.SplitAfterN(b, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil)
}

// Layouts asserts in C where the members of types are, and how long types are: by "type.member", and by "type".
func (h *Header) Layouts(all map[string]uintptr) string {
	tag := ""
	if h.Struct {
		tag = "struct "
	}
	asserts := make(map[string]int64)
	for what, got := range all {
		if name, member, ok := strings.Cut(what, "."); ok {
			asserts[fmt.Sprintf("offsetof(%s%s, %s)", tag, name, member)] = int64(got)
		} else {
			asserts[fmt.Sprintf("sizeof(%s%s)", tag, name)] = int64(got)
		}
	}
	return Constants(asserts)
}

// Sum fails the test unless the layouts are those that were compared with the header when it was written.
func Sum(t *testing.T, all map[string]uintptr, want string) {
	t.Helper()
	sum := uint32(1)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		sum = sum*31 + uint32(all[what])
	}
	if got := fmt.Sprintf("%x", sum); got != want {
		t.Errorf("the offsets and sizes sum up to %s, %s when they were compared with the header", got, want)
	}
}

// Constants asserts them in C, by their names.
func Constants(all map[string]int64) string {
	var c strings.Builder
	for name, got := range all {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	return c.String()
}

// Signatures declares functions, by their names, as pointers f to what is bound: an incompatible prototype does not compile. Names
// that the header also defines as macros are in parentheses.
func Signatures(all map[string]string) string {
	var c strings.Builder
	for i, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&c, "void check%d(void) { %s = %s; (void)f; }\n", i, all[name], name)
	}
	return c.String()
}
