package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func llama() block.Identity {
	return block.Identity{
		Model: "llama-3.1-8b", DType: "bfloat16", Layout: block.LayoutKV, LayerEnd: 32, HeadEnd: 8,
		HeadSize: 128, BlockTokens: 16, Salt: "the tenant's secret",
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	base := func(t *testing.T) file.Config {
		t.Helper()
		c := config(t)
		c.Identities = []block.Identity{llama()}
		c.Formats[0].Identity = c.Identities[0].Digest()
		return c
	}
	// Each case changes the configuration, or a directory that was opened before with the base
	// configuration.
	tests := []struct {
		name   string
		change func(t *testing.T, c *file.Config, marker string)
		is     error
		want   []string
	}{
		{"another identity", func(_ *testing.T, c *file.Config, _ string) {
			c.Identities[0].DType, c.Identities[0].Salt = "float16", "another"
			c.Formats[0].Identity = c.Identities[0].Digest()
		}, errdefs.ErrMismatch, []string{`dtype: expected "float16", found "bfloat16"`, "salt", "give another directory"}},
		{"another identity, not described", func(_ *testing.T, c *file.Config, _ string) {
			c.Identities, c.Formats[0].Identity = nil, block.Digest{7}
		}, errdefs.ErrMismatch, []string{"identity digest: expected " + block.Digest{7}.String()}},
		{"another layout", func(t *testing.T, c *file.Config, _ string) {
			l, err := block.NewLayout([]int64{4096})
			if err != nil {
				t.Fatal(err)
			}
			c.Formats[0].Layout = l
		}, errdefs.ErrMismatch, []string{"shard bytes: expected 1 shards of 4096 bytes, found 4 shards"}},
		{"a newer version", func(t *testing.T, _ *file.Config, marker string) {
			b, err := os.ReadFile(marker)
			if err != nil {
				t.Fatal(err)
			}
			write(t, marker, strings.NewReplacer(`"version": 1`, `"version": 3`, `"sum"`, `"its"`).Replace(string(b)))
		}, errdefs.ErrMismatch, []string{"version: expected 1 or 2, found 3", "another version of kvlane"}},
		{
			"a marker that is no JSON", func(t *testing.T, _ *file.Config, marker string) { write(t, marker, "{") },
			errdefs.ErrCorrupt,
			[]string{"kvlane.json", "unexpected end of JSON"},
		},
		{
			"an empty marker", func(t *testing.T, _ *file.Config, marker string) { write(t, marker, "") },
			errdefs.ErrCorrupt,
			[]string{"kvlane.json"},
		},
		{
			"another program's marker", func(t *testing.T, _ *file.Config, marker string) { write(t, marker, `{"format": "x"}`) },
			errdefs.ErrCorrupt,
			[]string{`found "x"`},
		},
		{"no marker but files", func(t *testing.T, _ *file.Config, marker string) {
			if err := os.Rename(marker, marker+".bak"); err != nil {
				t.Fatal(err)
			}
		}, errdefs.ErrInvalid, []string{"not empty and has no kvlane.json", "kvlane.json.bak"}},
		{"a file", func(t *testing.T, c *file.Config, _ string) {
			c.Dirs[0] = filepath.Join(t.TempDir(), "f")
			write(t, c.Dirs[0], "")
		}, errdefs.ErrInvalid, []string{"it is a file"}},
		{"below a file", func(t *testing.T, c *file.Config, _ string) {
			f := filepath.Join(t.TempDir(), "f")
			write(t, f, "")
			c.Dirs[0] = filepath.Join(f, "sub")
		}, errdefs.ErrInvalid, []string{"a part of its path is a file"}},
		{"the same directory twice", func(t *testing.T, c *file.Config, _ string) {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(c.Dirs[0], link); err != nil {
				t.Fatal(err)
			}
			c.Dirs = append(c.Dirs, link)
		}, errdefs.ErrInvalid, []string{"are the same"}},
		{"read-only", func(_ *testing.T, c *file.Config, _ string) {
			c.FS = faultfs.New(dirfs.OS(), fault.New(1, fault.After("mkdir", 0).Fail(syscall.EROFS)), nil)
		}, errdefs.ErrReadOnly, []string{"read-only file system", "tmp"}},
		{"full", func(_ *testing.T, c *file.Config, _ string) {
			c.FS = faultfs.New(dirfs.OS(), fault.New(1, fault.After("mkdir", 0).Fail(syscall.ENOSPC)), nil)
		}, errdefs.ErrNoSpace, []string{"no space left"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := base(t)
			dir := c.Dirs[0]
			if err := open(t, c).Close(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			tt.change(t, &c, filepath.Join(dir, "kvlane.json"))
			before := files(t, dir)
			tr, err := file.Open(t.Context(), c)
			if err == nil {
				err = errors.Join(errors.New("it opened"), tr.Close(context.WithoutCancel(t.Context())))
			}
			if !errors.Is(err, tt.is) {
				t.Fatalf("%v; want %v", err, tt.is)
			}
			for _, w := range append(tt.want, c.Dirs[0]) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in:\n%v", w, err)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the salt is shown in:\n%v", err)
			}
			if after := files(t, dir); len(after) != len(before) {
				t.Errorf("the directory has changed: %q, then %q", before, after)
			}
		})
	}
}

// Open does not change a directory of other files that was named by mistake.
func TestOpenLeavesAForeignDirectoryAlone(t *testing.T) {
	c := config(t)
	write(t, filepath.Join(c.Dirs[0], "thesis.tex"), "x")
	if _, err := file.Open(t.Context(), c); !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("opened: %v", err)
	}
	names, err := os.ReadDir(c.Dirs[0])
	if err != nil || len(names) != 1 {
		t.Errorf("the directory holds %v, %v", names, err)
	}
}

func TestOpenMakesDirectoriesAndKeepsSecrets(t *testing.T) {
	c := config(t)
	c.Dirs[0] = filepath.Join(c.Dirs[0], "a", "b")
	c.Identities = []block.Identity{llama()}
	c.Formats[0].Identity = c.Identities[0].Digest()
	open(t, c)
	b, err := os.ReadFile(filepath.Join(c.Dirs[0], "kvlane.json"))
	if err != nil {
		t.Fatal(err)
	}
	if s := string(b); strings.Contains(s, "secret") || !strings.Contains(s, `"model": "llama-3.1-8b"`) {
		t.Errorf("the marker contains\n%s", s)
	}
}

func TestConfigValidateNamesEveryProblem(t *testing.T) {
	c := file.Config{Dirs: []string{"a", "./a", ""}, Fsync: 9, Identities: []block.Identity{llama()}, Formats: block.Formats{tiertest.NewFormat(t)}, MaxBytes: 100, TouchAfter: -1}
	err := c.Validate()
	for _, want := range []string{"a is given twice", "directory 2 has no name", "fsync policy 9", "digest", "does not hold one block", "touch"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	for _, c := range []file.Config{{}, {Dirs: []string{"a"}, Formats: block.Formats{tiertest.NewFormat(t)}, MaxBytes: -1}} {
		if _, err := file.Open(t.Context(), c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Create, fill and close a directory while operation N of each kind fails, for all N. The fault
// must be reported. A later Open finds a usable directory without leftovers.
func TestOpenPutCloseWithEveryOperationFailing(t *testing.T) {
	for _, op := range []string{"open", "stat", "readdir", "mkdir", "rename", "remove", "write", "sync", "lock", "close"} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, nil, func(t *testing.T, plan *fault.Plan) error {
				c := config(t)
				c.Fsync = file.FsyncFile
				healthy := c
				c.FS = faultfs.New(dirfs.OS(), plan, nil)
				key := tiertest.Key(1)
				src := image(t, c.Formats[0], key)
				err := func() error {
					tr, err := file.Open(t.Context(), c)
					if err != nil {
						return err
					}
					err = errors.Join(tr.Stats().Failure, tr.Put(t.Context(), key, src))
					if _, gcErr := tr.GC(t.Context(), 1<<40); gcErr != nil {
						err = errors.Join(err, gcErr)
					}
					return errors.Join(err, tr.Close(context.WithoutCancel(t.Context())))
				}()
				plan.Clear()
				checkUsable(t, healthy, key)
				return err
			})
		})
	}
}

func checkUsable(t *testing.T, c file.Config, key block.Key) {
	t.Helper()
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatalf("open after the fault: %v", err)
	}
	put(t, tr, c.Formats[0], key)
	if err := get(t, tr, c.Formats[0], key); err != nil {
		t.Errorf("get after the fault: %v", err)
	}
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if left := files(t, c.Dirs[0]); len(left) != 1 {
		t.Errorf("files left: %q", left)
	}
}
