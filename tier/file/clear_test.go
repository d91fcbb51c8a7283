package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
)

// littered returns a directory with ten blocks, of which one is quarantined. It also has foreign
// files and a foreign folder that is not empty. The quarantine has a further sound block: its place
// is empty, and a copy has another name.
func littered(t *testing.T) (c file.Config, aside, sound string) {
	t.Helper()
	c = config(t)
	all := keys(0, 10)
	tr := open(t, c)
	put(t, tr, c.Formats[0], all...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := c.Dirs[0]
	flip(t, path(dir, all[0]), c.Formats[0].Layout.ShardOff(0))
	r, err := file.Repair(t.Context(), dir, nil)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Key != all[0] {
		t.Fatalf("%+v, %v", r, err)
	}
	aside = r.Findings[0].MovedTo
	if !strings.HasPrefix(aside, filepath.Join(dir, "quarantine")+"/") || !strings.HasSuffix(aside, all[0].String()) {
		t.Fatalf("the block was moved to %q", aside)
	}
	block, err := os.ReadFile(path(dir, all[1]))
	if err != nil {
		t.Fatal(err)
	}
	sound = filepath.Join(dir, "quarantine", "0000000000000001-"+all[1].String())
	if err := errors.Join(
		os.Rename(path(dir, all[1]), sound),
		os.MkdirAll(filepath.Join(dir, "mine"), 0o700),
		os.MkdirAll(filepath.Join(dir, "empty"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"notes.txt": "mine", "mine/more.txt": "mine", filepath.Base(filepath.Dir(path(dir, all[3]))) + "/junk": "x",
		"quarantine/by-hand": "y", "copy": string(block),
	} {
		write(t, filepath.Join(dir, name), text)
	}
	return c, aside, sound
}

// below returns the paths relative to the directory, sorted.
func below(dir string, paths []string) (names []string) {
	for _, p := range paths {
		names = append(names, strings.TrimPrefix(p, dir+"/"))
	}
	slices.Sort(names)
	return names
}

func TestClearRemovesWhatIsAskedFor(t *testing.T) {
	for what, c := range map[string]struct {
		unwanted file.Unwanted
		// Expected lists of files, separated by commas. Q: the quarantined block; S: the sound
		// block in quarantine; J: the foreign files.
		removed, left string
		kept          string
	}{
		"nothing":              {},
		"the quarantine":       {unwanted: file.Unwanted{Quarantine: true}, removed: "Q", left: "S", kept: "quarantine/by-hand"},
		"what is foreign":      {unwanted: file.Unwanted{Foreign: true}, removed: "J,empty,notes.txt,quarantine/by-hand", left: "copy,mine"},
		"one by name":          {unwanted: file.Unwanted{Names: []string{"notes.txt"}}, removed: "notes.txt"},
		"one as verify has it": {unwanted: file.Unwanted{Names: []string{"DIR/./notes.txt"}}, removed: "notes.txt"},
		"an intact block":      {unwanted: file.Unwanted{Names: []string{"copy"}}, left: "copy"},
		"all":                  {unwanted: file.Unwanted{Quarantine: true, Foreign: true}, removed: "J,Q,empty,notes.txt,quarantine/by-hand", left: "S,copy,mine"},
	} {
		t.Run(what, func(t *testing.T) {
			conf, aside, sound := littered(t)
			dir := conf.Dirs[0]
			junk := filepath.Join(filepath.Dir(path(dir, keys(3, 4)[0])), "junk")
			for i, n := range c.unwanted.Names {
				c.unwanted.Names[i] = strings.Replace(n, "DIR", dir, 1)
			}
			got, err := file.Clear(t.Context(), dir, c.unwanted)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, f := range got.Left {
				left = append(left, f.Path)
			}
			names := strings.NewReplacer(filepath.Base(aside), "Q", filepath.Base(sound), "S").Replace
			describe := func(paths []string) string {
				text := strings.Join(below(dir, paths), ",")
				text = strings.ReplaceAll(text, strings.TrimPrefix(junk, dir+"/"), "J")
				parts := strings.Split(strings.ReplaceAll(strings.ReplaceAll(names(text), "quarantine/Q", "Q"), "quarantine/S", "S"), ",")
				slices.Sort(parts)
				return strings.Join(parts, ",")
			}
			if describe(got.Removed) != c.removed || describe(left) != c.left {
				t.Errorf("removed %q, left %q; want %q and %q", describe(got.Removed), describe(left), c.removed, c.left)
			}
			if kept := strings.Join(below(dir, got.Unasked), ","); kept != c.kept {
				t.Errorf("%q was kept because it was not requested, want %q", kept, c.kept)
			}
			for _, p := range got.Removed {
				if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s exists: %v", p, err)
				}
			}
			if _, err := os.Stat(sound); err != nil {
				t.Error("a sound block was removed")
			}
			if in, err := file.Inspect(t.Context(), dir); err != nil || in.Blocks != 8 {
				t.Errorf("%+v, %v", in, err)
			}
			tr := open(t, conf)
			for _, key := range keys(2, 10) {
				if err := get(t, tr, conf.Formats[0], key); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Clear accepts only names of foreign or quarantined files. Any other name, such as a block, the
// marker or a path outside, makes it fail before it removes a file.
func TestClearRefusesNames(t *testing.T) {
	c, _, _ := littered(t)
	dir := c.Dirs[0]
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "x")
	for _, name := range []string{
		path(dir, keys(4, 5)[0]), "kvlane.json", "kvlane.lock", outside, "../" + filepath.Base(outside), "", ".", "tmp", "quarantine", "no-such",
	} {
		got, err := file.Clear(t.Context(), dir, file.Unwanted{Foreign: true, Quarantine: true, Names: []string{name}})
		if !errors.Is(err, errdefs.ErrInvalid) || len(got.Removed) > 0 {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	if _, err := file.Clear(t.Context(), t.TempDir(), file.Unwanted{Foreign: true}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("no directory of blocks: %v", err)
	}
}

// A sound block in a wrong folder went to quarantine if its own folder had the block too, and Clear
// never removed it.
func TestDefectSecondSoundCopyStaysForEver(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(t *testing.T, own string)
		stays bool
	}{
		"the right folder has the block":       {spoil: func(*testing.T, string) {}},
		"the right folder has a damaged block": {spoil: func(t *testing.T, own string) { flip(t, own, 4096) }, stays: true},
		"the right folder has another block": {spoil: func(t *testing.T, own string) {
			if err := os.Rename(path(filepath.Dir(filepath.Dir(own)), keys(1, 2)[0]), own); err != nil {
				t.Fatal(err)
			}
		}, stays: true},
	} {
		t.Run(what, func(t *testing.T) {
			conf := config(t)
			all := keys(0, 2)
			tr := open(t, conf)
			put(t, tr, conf.Formats[0], all...)
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			dir := conf.Dirs[0]
			own, second := path(dir, all[0]), filepath.Join(dir, "ff", all[0].String())
			b, err := os.ReadFile(own)
			if err = errors.Join(err, os.MkdirAll(filepath.Dir(second), 0o700)); err != nil {
				t.Fatal(err)
			}
			write(t, second, string(b))
			r, err := file.Repair(t.Context(), dir, nil)
			if err != nil || r.SetAside != 1 || len(r.Findings) != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			c.spoil(t, own)
			aside := r.Findings[0].MovedTo
			got, err := file.Clear(t.Context(), dir, file.Unwanted{Quarantine: true})
			_, serr := os.Stat(aside)
			if stays := serr == nil; err != nil || stays != c.stays || len(got.Left) != map[bool]int{true: 1}[stays] {
				t.Errorf("%+v, %v; it stays: %v", got, err, stays)
			}
			if c.stays && len(got.Left) == 1 && !strings.Contains(got.Left[0].Detail, "move it to "+own) {
				t.Errorf("detail of the finding that is left: %q", got.Left[0].Detail)
			}
		})
	}
}

// If another file has the name of the quarantine folder, it is a foreign file. Clear must still
// remove the other files.
func TestDefectForeignQuarantineStopsClear(t *testing.T) {
	for what, plant := range map[string]func(path string) error{
		"a link":         func(p string) error { return os.Symlink(t.TempDir(), p) },
		"a regular file": func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			c := config(t)
			tr := open(t, c)
			put(t, tr, c.Formats[0], keys(0, 1)...)
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			dir := c.Dirs[0]
			if err := plant(filepath.Join(dir, "quarantine")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "notes.txt"), "mine")
			if r, err := file.Verify(t.Context(), dir, nil); err != nil || len(r.Findings) != 2 {
				t.Errorf("%+v, %v", r, err)
			}
			got, err := file.Clear(t.Context(), dir, file.Unwanted{Quarantine: true, Foreign: true})
			if err != nil || strings.Join(below(dir, got.Removed), ",") != "notes.txt,quarantine" || len(got.Left) > 0 {
				t.Errorf("%+v, %v", got, err)
			}
			if r, err := file.Verify(t.Context(), dir, nil); err != nil || !r.Clean() {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
