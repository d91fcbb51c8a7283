package archtest

import (
	"errors"
	"hash/fnv"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mutantsEnv names the environment variable that enables the mutants. Its values are allMutants and
// changedMutants.
const mutantsEnv = "KVLANE_MUTANTS"

const (
	allMutants     = "all"
	changedMutants = "changed" // of files changed since main, and one part of restParts of the others
)

// restParts is the number of parts into which the mutants of unchanged files are divided. The
// commit hash chooses the part that runs.
const restParts = 8

// everyMutant returns all mutants.
func everyMutant() []mutant {
	return slices.Concat(mutants, storeMutants, storageMutants, fileMutants, shareMutants, transferMutants, blockioMutants, remoteMutants, rpcClientMutants, commandMutants, rpcrdmaMutants, rpcStubsMutants, whyMutants)
}

// chosenMutants returns the mutants to run and logs the choice. Without a merge base with main it
// returns all.
func chosenMutants(t *testing.T, which string) []mutant {
	t.Helper()
	all := everyMutant()
	if which != changedMutants {
		t.Logf("mutants: all %d", len(all))
		return all
	}
	base, err := mergeBase()
	if err != nil {
		t.Logf("mutants: all %d: no merge base with main: %v", len(all), err)
		return all
	}
	commit, err := git("rev-parse", "HEAD")
	files, errDiff := git("diff", "--name-only", base)
	if err := errors.Join(err, errDiff); err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(files)
	chosen, changed, part := choose(all, names, declared(names), commit)
	t.Logf("mutants: %d of %d: %d of files changed since %s, and part %d of %d of the others, chosen by commit %s",
		len(chosen), len(all), changed, base, part+1, restParts, commit)
	return chosen
}

// mergeBase returns the commit where this branch left main.
func mergeBase() (string, error) {
	base, err := git("merge-base", "HEAD", "origin/main")
	if err != nil {
		base, err = git("merge-base", "HEAD", "main")
	}
	return base, err
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// declared returns the tests of files as "folder/name". Removed files have none.
func declared(files []string) map[string]bool {
	tests := make(map[string]bool)
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(root, f))
		for _, m := range testDeclaration.FindAllSubmatch(text, -1) {
			tests[path.Join(path.Dir(f), string(m[1]))] = true
		}
	}
	return tests
}

var testDeclaration = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// choose returns the mutants that edit a file of files or whose test is in tests, and the part of
// the others that commit selects. It also returns the number of the former and the index of the
// part.
func choose(all []mutant, files []string, tests map[string]bool, commit string) (chosen []mutant, changed, part int) {
	part = int(hash(commit) % restParts)
	for _, m := range all {
		test, _, _ := strings.Cut(m.test, "/")
		here := tests[path.Join(m.pkg, test)]
		for edit := range slices.Chunk(m.edits, 3) {
			here = here || slices.Contains(files, edit[0])
		}
		if here {
			changed++
		}
		if here || int(hash(m.pkg+m.test+strings.Join(m.edits, ""))%restParts) == part {
			chosen = append(chosen, m)
		}
	}
	return chosen, changed, part
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum32()
}

// TestMutantsChosen checks that the mutants of a changed file and those of a changed test are
// chosen, that a commit chooses about an eighth of the others, and that all parts together contain
// every mutant.
func TestMutantsChosen(t *testing.T) {
	all := everyMutant()
	const file = "tier/file/get.go"
	chosen, changed, _ := choose(all, []string{file, "README.md"}, nil, "c0ffee")
	for _, m := range all {
		has := slices.ContainsFunc(chosen, func(c mutant) bool { return slices.Equal(c.edits, m.edits) && c.test == m.test })
		if slices.Contains(m.edits, file) && !has {
			t.Errorf("%s in a changed file is not chosen: %q", m.test, m.edits)
		}
	}
	if changed == 0 || changed > len(all)/4 {
		t.Errorf("%d of %d mutants are of a changed file", changed, len(all))
	}
	own := []mutant{defect("internal/archtest", "TestMutantsChosen/x", "a.go", "a", "b")}
	for name, want := range map[string]int{"internal/archtest/choose_test.go": 1, "internal/archtest/removed_test.go": 0} {
		if _, changed, _ := choose(own, nil, declared([]string{name}), "c0ffee"); changed != want {
			t.Errorf("%d mutants are of a test in the changed file %s, want %d", changed, name, want)
		}
	}
	parts, seen := make(map[int]int), 0
	for commit := range 64 {
		some, changed, part := choose(all, nil, nil, string(rune('a'+commit)))
		if changed != 0 || len(some) < len(all)/16 || len(some) > len(all)/4 {
			t.Fatalf("without a change %d of %d mutants are chosen, %d of them of a changed file", len(some), len(all), changed)
		}
		if parts[part] == 0 {
			seen += len(some)
		}
		parts[part] = len(some)
	}
	if len(parts) != restParts || seen != len(all) {
		t.Errorf("%d parts have %d mutants together, want %d parts and %d mutants", len(parts), seen, restParts, len(all))
	}
}
