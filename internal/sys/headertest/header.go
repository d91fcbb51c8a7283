// Package headertest compares bindings with their C headers. It uses a C compiler to check layouts,
// constants and signatures. If no header or compiler is available, a checksum detects accidental
// changes of layouts.
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

// Header is the C header of a binding. The compiler searches its default directories,
// C_INCLUDE_PATH and the CUDA installation.
type Header struct {
	Feature string // if this feature is missing, tests are skipped
	Include string // text at the beginning of each translation unit
	Struct  bool   // types are named with the keyword struct
}

// Compiler returns the path of a C compiler. Without one it skips the test and reports feature as
// missing.
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

// Compile compiles body as a translation unit. It skips the test if the header is not available.
func (h *Header) Compile(t *testing.T, body string) {
	t.Helper()
	cc := Compiler(t, h.Feature)
	check := func(body string) ([]byte, error) {
		src := filepath.Join(t.TempDir(), "check.c")
		// Older C libraries declare some functions of the headers only with _GNU_SOURCE.
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

// Layouts returns C assertions for offsets ("type.member") and sizes ("type").
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

// Sum fails the test if the checksum of the layouts differs from want, the checksum of layouts that
// were compared with the header.
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

// Constants returns C assertions for constants.
func Constants(all map[string]int64) string {
	var c strings.Builder
	for name, got := range all {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	return c.String()
}

// Signatures returns C code that assigns each function to a pointer of the bound type. It does not
// compile if the prototype is incompatible. Function names that are also macros are in parentheses.
func Signatures(all map[string]string) string {
	var c strings.Builder
	for i, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&c, "void check%d(void) { %s = %s; (void)f; }\n", i, all[name], name)
	}
	return c.String()
}
