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

// littered returns a directory of ten blocks, one of them set aside, with files that kvlane has not made, among them a copy of a sound
// block and a folder with something in it, and a sound block in quarantine.
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
	r, err := file.Repair(t.Context(), dir)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Key != all[0] {
		t.Fatalf("%+v, %v", r, err)
	}
	aside = r.Findings[0].MovedTo
	if !strings.HasPrefix(aside, filepath.Join(dir, "quarantine")+"/") || !strings.HasSuffix(aside, all[0].String()) {
		t.Fatalf("it was moved to %q", aside)
	}
	block, err := os.ReadFile(path(dir, all[2]))
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

// below makes paths relative to the directory.
func below(dir string, paths []string) (names []string) {
	for _, p := range paths {
		names = append(names, strings.TrimPrefix(p, dir+"/"))
	}
	slices.Sort(names)
	return names
}

func TestClearRemovesWhatIsAskedFor(t *testing.T) {
	for what, c := range map[string]struct {
		unwanted      file.Unwanted
		removed, left string // the files, by commas; Q is that which was set aside, S the sound block there, J what is beside blocks
	}{
		"nothing":              {},
		"the quarantine":       {unwanted: file.Unwanted{Quarantine: true}, removed: "Q", left: "S"},
		"what is foreign":      {unwanted: file.Unwanted{Foreign: true}, removed: "J,empty,notes.txt,quarantine/by-hand", left: "copy,mine"},
		"one by name":          {unwanted: file.Unwanted{Names: []string{"notes.txt"}}, removed: "notes.txt"},
		"one as verify has it": {unwanted: file.Unwanted{Names: []string{"DIR/./notes.txt"}}, removed: "notes.txt"},
		"a sound block":        {unwanted: file.Unwanted{Names: []string{"copy"}}, left: "copy"},
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
			say := func(paths []string) string {
				text := strings.Join(below(dir, paths), ",")
				text = strings.ReplaceAll(text, strings.TrimPrefix(junk, dir+"/"), "J")
				parts := strings.Split(strings.ReplaceAll(strings.ReplaceAll(names(text), "quarantine/Q", "Q"), "quarantine/S", "S"), ",")
				slices.Sort(parts)
				return strings.Join(parts, ",")
			}
			if say(got.Removed) != c.removed || say(left) != c.left {
				t.Errorf("removed %q, left %q; want %q and %q", say(got.Removed), say(left), c.removed, c.left)
			}
			for _, p := range got.Removed {
				if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is there: %v", p, err)
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

// A name that is no litter is refused before anything is removed: a block, the marker, what is outside.
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
