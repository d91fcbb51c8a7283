package faultfs_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
)

// rig is a process on a disk. The test ends at the first error.
type rig struct {
	*testing.T
	dirfs.Dir
	disk    *faultfs.Disk
	process *faultfs.Process
}

func newRig(t *testing.T, disk *faultfs.Disk) *rig {
	t.Helper()
	r := &rig{T: t, disk: disk, process: disk.Process()}
	d, err := r.process.OpenDir("/")
	r.must(err)
	r.Dir = d
	t.Cleanup(func() { r.must(d.Close()) })
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) open(name string, flag int) dirfs.File {
	r.Helper()
	f, err := r.Open(name, flag)
	r.must(err)
	r.Cleanup(func() { r.must(f.Close()) })
	return f
}

// write writes text at the start of a file.
func (r *rig) write(name, text string) {
	r.Helper()
	f, err := r.Open(name, os.O_WRONLY|os.O_CREATE)
	r.must(err)
	_, err = f.WriteAt([]byte(text), 0)
	r.must(errors.Join(err, f.Close()))
}

// sync syncs files. A name that ends in a slash is a directory.
func (r *rig) sync(names ...string) {
	r.Helper()
	for _, name := range names {
		flag := os.O_RDONLY
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			name, flag = dir, flag|unix.O_DIRECTORY
		}
		f, err := r.Open(name, flag)
		r.must(err)
		r.must(errors.Join(f.Sync(), f.Close()))
	}
}

// tree describes the content of the disk, for example "dir/ dir/f=contents".
func (r *rig) tree() string {
	r.Helper()
	var all []string
	var list func(folder string)
	list = func(folder string) {
		names, err := r.ReadDir(folder + ".")
		if folder != "" {
			names, err = r.ReadDir(strings.TrimSuffix(folder, "/"))
		}
		r.must(err)
		for _, name := range names {
			i, err := r.Stat(folder + name)
			r.must(err)
			if i.Type.IsDir() {
				all = append(all, folder+name+"/")
				list(folder + name + "/")
				continue
			}
			b := make([]byte, i.Bytes)
			f, err := r.Open(folder+name, os.O_RDONLY)
			r.must(err)
			_, err = f.ReadAt(b, 0)
			r.must(errors.Join(err, f.Close()))
			all = append(all, fmt.Sprintf("%s=%s", folder+name, b))
		}
	}
	list("")
	return strings.Join(all, " ")
}

// after returns the content of a disk after script and a power failure, and checks that all of it
// is durable.
func after(t *testing.T, script func(r *rig), s faultfs.Survival) string {
	t.Helper()
	disk := faultfs.NewDisk(nil)
	script(newRig(t, disk))
	disk.PowerFail(s)
	found := newRig(t, disk).tree()
	disk.PowerFail(faultfs.KeepSynced())
	if got := newRig(t, disk).tree(); got != found {
		t.Errorf("a power failure left %q, and another, with nothing done in between, %q", found, got)
	}
	return found
}

// outcomes runs script and a power failure with many seeds, and counts the contents of the disk.
func outcomes(t *testing.T, script func(r *rig)) map[string]int {
	t.Helper()
	found := make(map[string]int)
	for seed := range uint64(200) {
		found[after(t, script, faultfs.KeepSome(seed))]++
	}
	return found
}

func TestPowerFailure(t *testing.T) {
	for name, c := range map[string]struct {
		script func(r *rig)
		want   []string // all possible contents: the first without unsynced data, the last with all of it
	}{
		"nothing is synced": {
			func(r *rig) { r.write("f", "x") },
			[]string{"", "f=", "f=\x00", "f=x"},
		},
		"a file's sync is not its name's": {
			func(r *rig) { r.write("f", "text"); r.sync("f") },
			[]string{"", "f=text"},
		},
		"a name's sync is not the file's": {
			func(r *rig) { r.write("f", "x"); r.sync("./") },
			[]string{"f=", "f=\x00", "f=x"},
		},
		"both are synced": {
			func(r *rig) { r.write("f", "text"); r.sync("f", "./") },
			[]string{"f=text"},
		},
		"a sync covers nothing later": {
			func(r *rig) { r.write("f", "a"); r.sync("f", "./"); r.write("f", "b"); r.write("g", "") },
			[]string{"f=a", "f=a g=", "f=b", "f=b g="},
		},
		"any version since the last sync": {
			func(r *rig) { r.write("f", "a"); r.sync("f", "./"); r.write("f", "b"); r.write("f", "c") },
			[]string{"f=a", "f=b", "f=c"},
		},
		"cut": {
			func(r *rig) {
				r.write("f", "a")
				r.sync("f", "./")
				r.open("f", os.O_WRONLY|os.O_TRUNC)
			},
			[]string{"f=a", "f=\x00", "f="},
		},
		"a folder's name is its parent's": {
			func(r *rig) { r.must(r.Mkdir("d")); r.write("d/f", "x"); r.sync("d/f", "d/") },
			[]string{"", "d/ d/f=x"},
		},
		"a folder's names are its own": {
			func(r *rig) { r.must(r.Mkdir("d")); r.write("d/f", "x"); r.sync("d/f", "./") },
			[]string{"d/", "d/ d/f=x"},
		},
		"remove": {
			func(r *rig) { r.write("f", "x"); r.sync("f", "./"); r.must(r.Remove("f")) },
			[]string{"f=x", ""},
		},
		"remove a folder": {
			func(r *rig) {
				r.must(r.Mkdir("d"))
				r.write("d/f", "x")
				r.sync("d/f", "d/", "./")
				r.must(r.Remove("d/f"))
				r.must(r.Remove("d"))
			},
			[]string{"d/ d/f=x", "d/", ""},
		},
		"remove and make again": {
			func(r *rig) {
				r.write("f", "a")
				r.sync("f", "./")
				r.must(r.Remove("f"))
				r.write("f", "b")
				r.sync("f")
			},
			[]string{"f=a", "", "f=b"},
		},
		"rename over a file": {
			func(r *rig) { r.replace(); r.must(r.Rename("new", "f", true)) },
			[]string{"f=a new=b", "f=a", "f=b new=b", "f=b"}, // f always exists
		},
		"rename over a file, synced": {
			func(r *rig) { r.replace(); r.must(r.Rename("new", "f", true)); r.sync("./") },
			[]string{"f=b"},
		},
		"rename over a file without a sync of what it holds": {
			func(r *rig) {
				r.write("f", "a")
				r.sync("f", "./")
				r.write("new", "b")
				r.must(r.Rename("new", "f", true))
				r.sync("./")
			},
			[]string{"f=", "f=\x00", "f=b"},
		},
		"rename elsewhere": {
			func(r *rig) { r.elsewhere() },
			[]string{"a/ a/f=x b/", "a/ b/", "a/ a/f=x b/ b/f=x", "a/ b/ b/f=x"},
		},
		"rename elsewhere, and sync where to": {
			func(r *rig) { r.elsewhere(); r.sync("b/") },
			[]string{"a/ a/f=x b/ b/f=x", "a/ b/ b/f=x"},
		},
		"rename elsewhere, and sync where from": {
			func(r *rig) { r.elsewhere(); r.sync("a/") },
			[]string{"a/ b/", "a/ b/ b/f=x"},
		},
		"a folder has one name": {
			func(r *rig) {
				r.elsewhere()
				r.sync("a/", "b/", "./")
				r.must(r.Rename("b", "a/b", true))
			},
			[]string{"a/ b/ b/f=x", "a/", "a/ a/b/ a/b/f=x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, last := slices.Clone(c.want), len(c.want)-1
			if got := after(t, c.script, faultfs.KeepSynced()); got != want[0] {
				t.Errorf("with synced data: %q, want %q", got, want[0])
			}
			if got := after(t, c.script, faultfs.KeepAll()); got != want[last] {
				t.Errorf("with all writes kept: %q, want %q", got, want[last])
			}
			slices.Sort(want)
			if got := outcomes(t, c.script); !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
				t.Errorf("found %v, want all of %q", slices.Sorted(maps.Keys(got)), want)
			}
		})
	}
}

// replace creates f=a and new=b, both durable.
func (r *rig) replace() {
	r.Helper()
	r.write("f", "a")
	r.write("new", "b")
	r.sync("f", "new", "./")
}

// elsewhere renames a durable a/f to b/f.
func (r *rig) elsewhere() {
	r.Helper()
	r.must(r.Mkdir("a"))
	r.must(r.Mkdir("b"))
	r.write("a/f", "x")
	r.sync("a/f", "a/", "b/", "./")
	r.must(r.Rename("a/f", "b/f", true))
}

// After a power failure each sector of a file has one of its contents since the last sync. Its
// length is one of the lengths since then, or between them.
func TestPowerFailureTearsFiles(t *testing.T) {
	const sector, before, later = 512, 20, 60
	letters, lengths := make(map[byte]int), make(map[string]int)
	mixed, torn := 0, 0
	for got := range outcomes(t, func(r *rig) {
		r.write("f", strings.Repeat("a", before*sector))
		r.sync("f", "./")
		r.write("f", strings.Repeat("b", before*sector))
		r.write("f", strings.Repeat("c", later*sector))
	}) {
		b := []byte(strings.TrimPrefix(got, "f="))
		switch n := len(b); {
		case n == before*sector:
			lengths["old"]++
		case n == later*sector:
			lengths["new"]++
		case n > before*sector && n < later*sector:
			lengths["between"]++
		default:
			t.Fatalf("%d bytes", n)
		}
		seen := make(map[byte]bool)
		for at := 0; at < len(b); at += sector {
			part := b[at:min(at+sector, len(b))]
			if strings.Trim(string(part), string(part[:1])) != "" {
				t.Fatalf("the sector at %d is torn: %q", at, part)
			}
			if at >= before*sector && part[0] != 0 && part[0] != 'c' {
				t.Fatalf("the sector at %d was never %q", at, part[:1])
			}
			if at%4096 != 0 && part[0] != b[at-1] && part[0] != 0 && b[at-1] != 0 { // except at the old end of the file
				torn++
			}
			letters[part[0]]++
			seen[part[0]] = true
		}
		if len(seen) == 4 {
			mixed++
		}
	}
	if len(letters) != 4 || len(lengths) != 3 || mixed == 0 || torn == 0 {
		t.Errorf("sectors %v, lengths %v, %d files of all sorts, %d pages torn", letters, lengths, mixed, torn)
	}
}

// A file that has two names after an interrupted rename exists until both are removed.
func TestPowerFailureLeavesTwoNames(t *testing.T) {
	for seed := range uint64(100) {
		disk := faultfs.NewDisk(nil)
		newRig(t, disk).elsewhere()
		disk.PowerFail(faultfs.KeepSome(seed))
		r := newRig(t, disk)
		if r.tree() != "a/ a/f=x b/ b/f=x" {
			continue
		}
		r.must(r.Rename("a/f", "b/f", true)) // no effect according to POSIX
		r.must(r.Remove("a/f"))
		if got := r.tree(); got != "a/ b/ b/f=x" || disk.Used() != 1 {
			t.Errorf("after one was removed: %q, %d bytes used", got, disk.Used())
		}
		r.must(r.Remove("b/f"))
		if disk.Used() != 0 {
			t.Errorf("after both were removed %d bytes are used", disk.Used())
		}
		return
	}
	t.Error("no seed left two names")
}

// Synced data is never torn, whatever other operations are interrupted.
func TestPowerFailureLeavesWhatIsSynced(t *testing.T) {
	text := strings.Repeat("synced", 3000)
	for got := range outcomes(t, func(r *rig) {
		r.must(r.Mkdir("d"))
		r.write("d/new", text)
		r.sync("d/new")
		r.must(r.Rename("d/new", "d/f", true))
		r.sync("d/", "./")
		r.write("d/other", text)
		r.must(r.Rename("d/other", "d/another", true))
		r.must(r.Mkdir("e"))
		r.must(r.SetTime("d/f", r.modified("d")))
	}) {
		if !strings.Contains(got, "d/f="+text) {
			t.Fatalf("the synced file is lost: %.100q", got)
		}
	}
}

func TestPowerFailureIsDrawnFromItsSeed(t *testing.T) {
	script := func(r *rig) {
		for i := range 20 {
			r.write(fmt.Sprint("f", i), strings.Repeat("x", 3000))
		}
	}
	for seed := range uint64(20) {
		if a, b := after(t, script, faultfs.KeepSome(seed)), after(t, script, faultfs.KeepSome(seed)); a != b {
			t.Fatalf("seed %d left %q, then %q", seed, a, b)
		}
	}
}
