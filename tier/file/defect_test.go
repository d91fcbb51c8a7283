package file_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A read hangs after its context has ended. Get must not return before the read ends, because the
// caller may then reuse the buffer.
func TestDefect5TimedOutReadDoesNotOverwriteReusedBuffer(t *testing.T) {
	c := config(t)
	plan := fault.New(1)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)

	plan.Add(fault.Nth("read", int(plan.Seen("read"))).Stall())
	ctx, cancel := context.WithCancel(t.Context())
	dst := tiertest.Buffer(t, c.Formats[0].Layout.ImageBytes())
	returned := make(chan error, 1)
	go func() { returned <- tr.Get(ctx, key, dst) }()
	if err := plan.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-returned:
		t.Fatalf("Get returned while its read hangs: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	plan.Release()
	// Get may succeed, because the read started before the context ended.
	if err := <-returned; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	reused := dst.Bytes()
	for i := range reused {
		reused[i] = 0x5a
	}
	if err := get(t, tr, c.Formats[0], key); err != nil {
		t.Error(err)
	}
	if n := bytes.Count(reused, []byte{0x5a}); n != len(reused) {
		t.Errorf("%d bytes of the reused buffer were overwritten", len(reused)-n)
	}
}

// A torn block is a miss, whatever tore it. It is moved aside, counted, and never found again.
func TestDefect7TornBlockIsAMiss(t *testing.T) {
	for name, tear := range map[string]func(t *testing.T, path string, size int64){
		"cut off":     func(t *testing.T, p string, n int64) { truncate(t, p, n-1) },
		"empty":       func(t *testing.T, p string, _ int64) { truncate(t, p, 0) },
		"too long":    func(t *testing.T, p string, n int64) { truncate(t, p, n+1) },
		"header":      func(t *testing.T, p string, _ int64) { flip(t, p, 40) },
		"shard":       func(t *testing.T, p string, n int64) { flip(t, p, n-4096) },
		"padding":     func(t *testing.T, p string, n int64) { flip(t, p, n-1) },
		"key is zero": func(t *testing.T, p string, n int64) { truncate(t, p, 0); truncate(t, p, n) },
		"another block": func(t *testing.T, p string, _ int64) {
			b, err := os.ReadFile(path(filepath.Dir(filepath.Dir(p)), tiertest.Key(2)))
			if err != nil {
				t.Fatal(err)
			}
			write(t, p, string(b))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			tr, key := open(t, c), tiertest.Key(1)
			put(t, tr, c.Formats[0], key, tiertest.Key(2))
			tear(t, path(c.Dirs[0], key), c.Formats[0].Layout.ImageBytes())
			if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), key.String()) {
				t.Errorf("get: %v", err)
			}
			if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("second get: %v", err)
			}
			if s := state(t, tr, key); s != tier.Absent {
				t.Errorf("lookup returns %s", s)
			}
			if st := tr.Stats(); st.Corrupt != 1 || st.Quarantined != 1 || st.Blocks != 1 {
				t.Errorf("%+v", st)
			}
			put(t, tr, c.Formats[0], key)
			if err := get(t, tr, c.Formats[0], key); err != nil {
				t.Errorf("after a new put: %v", err)
			}
		})
	}
}

func truncate(t *testing.T, path string, n int64) {
	t.Helper()
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
}

// Retain and Lookup check the file size, and a Put replaces a file of the wrong size.
func TestDefect7FileOfAnotherSizeIsNoHit(t *testing.T) {
	c := config(t)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)
	truncate(t, path(c.Dirs[0], key), 4096)
	if s := state(t, tr, key); s != tier.Failed {
		t.Errorf("lookup returns %s", s)
	}
	if n, err := tr.Retain(t.Context(), []block.Key{key}); n != 0 || err != nil {
		t.Errorf("retain: %v, %v", n, err)
	}
	put(t, tr, c.Formats[0], key)
	if err := get(t, tr, c.Formats[0], key); err != nil {
		t.Error(err)
	}
	if st := tr.Stats(); st.Blocks != 1 || st.Corrupt != 1 || st.Quarantined != 1 {
		t.Errorf("%+v", st)
	}
}

func TestDefect7ShortReadsAreReadOn(t *testing.T) {
	c := config(t)
	plan := fault.New(1)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)
	plan.Add(fault.Every("read", 1).Partial(nil))
	if err := get(t, tr, c.Formats[0], key); err != nil {
		t.Error(err)
	}
	if plan.Injected() < 5 {
		t.Errorf("only %d short reads", plan.Injected())
	}
}

func TestDefect7ShortWriteLeavesNothing(t *testing.T) {
	for name, cause := range map[string]error{"full": syscall.ENOSPC, "over quota": syscall.EDQUOT, "without a cause": nil} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			plan, clock := fault.New(1), clockwork.NewFakeClockAt(time.Now())
			c.FS, c.Clock = faultfs.New(dirfs.OS(), plan, nil), clock
			tr, key := open(t, c), tiertest.Key(1)
			plan.Add(fault.Nth("write", int(plan.Seen("write"))).Partial(cause))
			err := tr.Put(t.Context(), key, image(t, c.Formats[0], key))
			if !errors.Is(err, fault.ErrInjected) || cause != nil && !errors.Is(err, errdefs.ErrNoSpace) {
				t.Errorf("put: %v", err)
			}
			if left := files(t, c.Dirs[0]); len(left) > 0 {
				t.Errorf("files left: %q", left)
			}
			if s := state(t, tr, key); s != tier.Absent {
				t.Errorf("lookup returns %s", s)
			}
			clock.Advance(time.Second) // a full disk pauses writes
			put(t, tr, c.Formats[0], key)
			if err := get(t, tr, c.Formats[0], key); err != nil {
				t.Error(err)
			}
		})
	}
}

// If the file system changes bytes without an error, the next read detects it.
func TestDefect7SilentCorruptionIsFound(t *testing.T) {
	for _, op := range []string{"read", "write"} {
		c := config(t)
		plan := fault.New(3)
		c.FS = faultfs.New(dirfs.OS(), plan, nil)
		tr := open(t, c)
		plan.Add(fault.Nth(op, int(plan.Seen(op))).Corrupt())
		put(t, tr, c.Formats[0], tiertest.Key(1))
		if err := get(t, tr, c.Formats[0], tiertest.Key(1)); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("corrupt %s: %v", op, err)
		}
	}
}

func TestDefect7EveryFailureOfAPutIsReportedAndLeavesNothing(t *testing.T) {
	for _, fsync := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
		for _, op := range []string{"open", "stat", "mkdir", "rename", "write", "sync", "close"} {
			if op == "sync" && fsync == file.FsyncNever {
				continue
			}
			t.Run(fsync.String()+"/"+op, func(t *testing.T) {
				testkit.Sweep(t, op, syscall.EIO, func(t *testing.T, plan *fault.Plan) error {
					c := config(t)
					c.Fsync = fsync
					late := faultfs.New(dirfs.OS(), nil, nil) // all operations succeed at first
					c.FS = late
					tr, key := open(t, c), tiertest.Key(1)
					late.Use(plan)
					err := tr.Put(t.Context(), key, image(t, c.Formats[0], key))
					late.Use(nil)
					if left := files(t, c.Dirs[0]); err != nil && len(left) > 0 {
						t.Errorf("files left: %q", left)
					}
					if st := tr.Stats(); err != nil && (st.Blocks != 0 || st.Puts != 0 || st.Errors != 1) {
						t.Errorf("%+v", st)
					}
					put(t, tr, c.Formats[0], key)
					return errors.Join(err, get(t, tr, c.Formats[0], key))
				})
			})
		}
	}
}

func TestDefect7EveryFailureOfAGetIsReported(t *testing.T) {
	for _, op := range []string{"open", "fstat", "read"} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, syscall.EIO, func(t *testing.T, plan *fault.Plan) error {
				c := config(t)
				late := faultfs.New(dirfs.OS(), nil, nil) // all operations succeed at first
				c.FS = late
				tr, key := open(t, c), tiertest.Key(1)
				put(t, tr, c.Formats[0], key)
				late.Use(plan)
				err := get(t, tr, c.Formats[0], key)
				late.Use(nil)
				if err != nil && (errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrNotFound)) {
					t.Errorf("a device's failure is no corruption and no miss: %v", err)
				}
				return errors.Join(err, get(t, tr, c.Formats[0], key))
			})
		})
	}
}

// On a shared file system another host may remove a block at any time. That is a miss.
func TestVanishedBlockIsAMiss(t *testing.T) {
	for _, op := range []string{"open", "fstat", "read"} {
		c := config(t)
		plan := fault.New(1)
		c.FS = faultfs.New(dirfs.OS(), plan, nil)
		tr, key := open(t, c), tiertest.Key(1)
		put(t, tr, c.Formats[0], key)
		plan.Add(fault.Nth(op, int(plan.Seen(op))).Fail(syscall.ESTALE))
		if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s: %v", op, err)
		}
		if st := tr.Stats(); st.Misses != 1 || st.Errors != 0 || st.Corrupt != 0 {
			t.Errorf("%s: %+v", op, st)
		}
	}
}

// FsyncFile syncs a file before the rename that publishes it, and its folder before Put returns.
func TestDefect7FsyncPolicy(t *testing.T) {
	for policy, want := range map[file.FsyncPolicy][]int64{
		file.FsyncNever: {0, 0, 0},
		// The file and its folder. The first block of a folder also syncs the parent directory.
		file.FsyncFile: {3, 2, 0},
	} {
		c := config(t)
		plan := fault.New(1)
		c.FS, c.Fsync = faultfs.New(dirfs.OS(), plan, nil), policy
		tr := open(t, c)
		neighbor := tiertest.Key(1)
		neighbor[31]++
		for i, key := range []block.Key{tiertest.Key(1), neighbor, neighbor} {
			before := plan.Seen("sync")
			put(t, tr, c.Formats[0], key)
			if n := plan.Seen("sync") - before; n != want[i] {
				t.Errorf("policy %s, put %d: %d syncs, want %d", policy, i, n, want[i])
			}
		}
	}
}

// Open removes the session folder of a dead process and keeps that of a live one.
func TestDefect7OrphanedTemporaryFilesAreSwept(t *testing.T) {
	c := config(t)
	first := open(t, c)
	put(t, first, c.Formats[0], tiertest.Key(1))
	alive := sessions(t, c.Dirs[0])

	crashed := c
	fs := faultfs.New(dirfs.OS(), fault.New(1), nil)
	crashed.FS = fs
	dead, err := file.Open(t.Context(), crashed)
	if err != nil {
		t.Fatal(err)
	}
	session := slices.DeleteFunc(sessions(t, c.Dirs[0]), func(s string) bool { return slices.Contains(alive, s) })[0]
	write(t, filepath.Join(session, "1"), "half a block")
	write(t, filepath.Join(session, "2"), "")
	fs.Crash()
	if err := dead.Close(context.WithoutCancel(t.Context())); !errors.Is(err, faultfs.ErrCrashed) {
		t.Fatalf("the crash left no trace: %v", err)
	}

	second := open(t, c)
	if n := second.Stats().Swept; n != 2 {
		t.Errorf("%d files swept, want 2", n)
	}
	if _, err := os.Stat(session); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead session's folder: %v", err)
	}
	// The first tier still works: both tiers find the blocks of the other.
	put(t, first, c.Formats[0], tiertest.Key(2))
	put(t, second, c.Formats[0], tiertest.Key(3))
	for _, k := range keys(1, 4) {
		if err := errors.Join(get(t, first, c.Formats[0], k), get(t, second, c.Formats[0], k)); err != nil {
			t.Error(err)
		}
	}
}

// sessions returns the folders of temporary files in a directory.
func sessions(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// setTimes makes the file of keys[i] i hours younger than that of keys[0], in whichever directory
// it is.
func setTimes(t *testing.T, dirs []string, keys []block.Key) {
	t.Helper()
	base := time.Now().Add(-1000 * time.Hour)
	for i, key := range keys {
		when := base.Add(time.Duration(i) * time.Hour)
		if err := os.Chtimes(find(t, dirs, key), when, when); err != nil {
			t.Fatal(err)
		}
	}
}

func present(t *testing.T, tr *file.Tier, keys []block.Key) (there []bool) {
	t.Helper()
	for _, k := range keys {
		there = append(there, state(t, tr, k) == tier.Ready)
	}
	return there
}

func TestDefect7GCLooksAtEveryDirectory(t *testing.T) {
	const n, keep = 60, 20
	c := config(t)
	c.Dirs = append(c.Dirs, t.TempDir(), t.TempDir())
	tr := open(t, c)
	all := keys(0, n)
	put(t, tr, c.Formats[0], all...)
	setTimes(t, c.Dirs, all)
	for _, d := range c.Dirs {
		if len(files(t, d)) < n/10 {
			t.Fatalf("directory %s has only %d of %d blocks", d, len(files(t, d)), n)
		}
	}
	removed, err := tr.GC(t.Context(), keep*c.Formats[0].Layout.ImageBytes())
	if err != nil || removed != n-keep {
		t.Errorf("removed %d, %v", removed, err)
	}
	for i, there := range present(t, tr, all) {
		if there != (i >= n-keep) {
			t.Errorf("block %d, the lowest being the coldest: there %v", i, there)
		}
	}
	if st := tr.Stats(); st.Blocks != keep || st.Evictions != n-keep {
		t.Errorf("%+v", st)
	}
}

func TestDefect7GCSparesWhatIsRetainedBetweenLookupAndLoad(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 10)
	put(t, tr, c.Formats[0], all...)
	setTimes(t, c.Dirs, all)
	for _, k := range all[:3] { // the coldest blocks; they are now retained, as by a lookup with a lease
		if n, err := tr.Retain(t.Context(), []block.Key{k}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if removed, err := tr.GC(t.Context(), 0); err != nil || removed != 7 {
		t.Errorf("removed %d, %v", removed, err)
	}
	for _, k := range all[:3] {
		if err := get(t, tr, c.Formats[0], k); err != nil {
			t.Errorf("load of a retained block: %v", err)
		}
		tr.Release([]block.Key{k})
	}
	if removed, err := tr.GC(t.Context(), 0); err != nil || removed != 3 {
		t.Errorf("after the release: removed %d, %v", removed, err)
	}
}

func TestDefect9AddingADirectoryMovesOnlyItsShare(t *testing.T) {
	const n = 200
	c := config(t)
	c.Dirs = append(c.Dirs, t.TempDir(), t.TempDir())
	tr := open(t, c)
	all := keys(0, n)
	put(t, tr, c.Formats[0], all...)
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	hits := func(dirs []string) int {
		c := c
		c.Dirs = dirs
		tr := open(t, c)
		hits := 0
		for _, there := range present(t, tr, all) {
			if there {
				hits++
			}
		}
		return hits
	}
	reversed := slices.Clone(c.Dirs)
	slices.Reverse(reversed)
	if h := hits(reversed); h != n {
		t.Errorf("%d of %d blocks found with the directories in another order", h, n)
	}
	// The fourth directory gets a quarter of the keys. Of 200 blocks about 150 stay; the limits are
	// four standard deviations.
	if h := hits(append(reversed, t.TempDir())); h < 125 || h > 175 {
		t.Errorf("%d of %d blocks found with a fourth directory, want about 150", h, n)
	}
	if h := hits(c.Dirs[:2]); h < 105 || h > 160 {
		t.Errorf("%d of %d blocks found without the third directory, want about 133", h, n)
	}
}
