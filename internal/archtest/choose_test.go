package archtest

import (
	"errors"
	"hash/fnv"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// mutantsEnv names the environment variable that enables the mutants. Its values are allMutants and
// changedMutants.
const mutantsEnv = "KVLANE_MUTANTS"

const (
	allMutants     = "all"
	changedMutants = "changed" // of packages changed since main, and one part of restParts of the others
)

// restParts is the number of parts into which the mutants of unchanged packages are divided. The
// commit hash chooses the part that runs.
const restParts = 4

// everyMutant returns all mutants.
func everyMutant() []mutant {
	return slices.Concat(mutants, storeMutants, storageMutants, fileMutants, shareMutants, transferMutants, blockioMutants, remoteMutants, rpcClientMutants, commandMutants, rpcrdmaMutants, rpcStubsMutants)
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
	chosen, changed, part := choose(all, strings.Fields(files), commit)
	t.Logf("mutants: %d of %d: %d of packages changed since %s, and part %d of %d of the others, chosen by commit %s",
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

// choose returns the mutants that test or edit a package with a file in files, and the part of the
// others that commit selects. It also returns the number of the former and the index of the part.
func choose(all []mutant, files []string, commit string) (chosen []mutant, changed, part int) {
	folders := make(map[string]bool)
	for _, f := range files {
		folders[path.Dir(f)] = true
	}
	part = int(hash(commit) % restParts)
	for _, m := range all {
		here := folders[path.Clean(m.pkg)]
		for edit := range slices.Chunk(m.edits, 3) {
			here = here || folders[path.Dir(edit[0])]
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

// TestMutantsChosen checks that every mutant of a changed package is chosen, that a commit chooses
// about a quarter of the others, and that all parts together contain every mutant.
func TestMutantsChosen(t *testing.T) {
	all := everyMutant()
	chosen, changed, _ := choose(all, []string{"tier/file/get.go", "README.md"}, "c0ffee")
	for _, m := range all {
		file := m.pkg == "tier/file" || strings.HasPrefix(m.edits[0], "tier/file/")
		has := slices.ContainsFunc(chosen, func(c mutant) bool { return slices.Equal(c.edits, m.edits) && c.test == m.test })
		if file && !has {
			t.Errorf("%s in a changed package is not chosen: %q", m.test, m.edits)
		}
	}
	if changed == 0 || changed > len(all)/2 {
		t.Errorf("%d of %d mutants are of a changed package", changed, len(all))
	}
	parts, seen := make(map[int]int), 0
	for commit := range 64 {
		some, changed, part := choose(all, nil, string(rune('a'+commit)))
		if changed != 0 || len(some) < len(all)/8 || len(some) > len(all)/2 {
			t.Fatalf("without a change %d of %d mutants are chosen, %d of them of a changed package", len(some), len(all), changed)
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
