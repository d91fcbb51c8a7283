package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every test that docs/hardware-support.md names for a defect exists. Unless it needs hardware, a
// mutant shows that it fails with the defect. Every defect has a test that needs no hardware.
func TestDefectsHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "hardware-support.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## Defects of published streams over NICs")
	if !found {
		t.Fatal("the section is missing")
	}
	rows := 0
	named := regexp.MustCompile("((?:`[^`]+`, )*`[^`]+`) (Test\\w+)")
	for line := range strings.Lines(table) {
		tests := named.FindAllStringSubmatch(line, -1)
		everywhere := 0
		if strings.HasPrefix(line, "| ") && len(tests) > 0 {
			rows++
		}
		for _, m := range tests {
			for dir := range strings.SplitSeq(m[1], ", ") {
				if dir = strings.Trim(dir, "`"); !hasTest(t, filepath.Join(root, dir), m[2]) {
					t.Errorf("package %s has no %s", dir, m[2])
				}
				if needsHardware.MatchString(m[2]) {
					continue
				}
				everywhere++
				if !slices.ContainsFunc(mutants, func(u mutant) bool { return u.pkg == dir && u.test == m[2] }) {
					t.Errorf("package %s: %s has no mutant", dir, m[2])
				}
			}
		}
		if len(tests) > 0 && everywhere == 0 {
			t.Errorf("every test needs hardware: %s", line)
		}
	}
	if rows < 14 {
		t.Errorf("%d defects are listed, want 14", rows)
	}
}

// needsHardware matches tests that run on a GPU or on an RDMA device only.
var needsHardware = regexp.MustCompile("^Test(GPU|Verbs)")

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+name+"(") {
			return true
		}
	}
	return false
}
