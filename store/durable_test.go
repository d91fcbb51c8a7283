package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// The first block is missing and later ones are damaged in the files. The dump has the right bytes
// in its pages, so it must not skip the damaged blocks.
func TestDefectDumpTakesDamagedCopiesForStored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := newRig(t, rigOptions{dirs: []string{dir}})
	old.dump(1, 2, 3, 4, 5)
	old.closeStore()
	for n := 2; n <= 4; n++ {
		key := old.key(n).String()
		path := filepath.Join(dir, key[:2], key)
		b, err := os.ReadFile(path)
		old.must(err)
		b[len(b)/2] ^= 1
		old.must(os.WriteFile(path, b, 0o600))
	}
	key := old.key(1).String()
	old.must(os.Remove(filepath.Join(dir, key[:2], key)))

	r := newRig(t, rigOptions{dirs: []string{dir}})
	r.dump(1, 2, 3, 4, 5)
	if st := r.st.Stats(); st.Mismatches != 3 || st.Tiers[1].Tier.Corrupt != 3 || st.Tiers[1].Tier.Replaced != 3 {
		t.Errorf("%+v", st)
	}
	// The dump skips blocks that this process has written or has verified completely.
	if again := r.dump(1, 2, 3, 4, 5); again.Skipped() != 5 {
		t.Errorf("%d of 5 blocks were skipped", again.Skipped())
	}
	if v, err := file.Verify(t.Context(), dir, nil); err != nil || v.Blocks != 5 || len(v.Findings) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// fullTier has no space. Put waits until its context ends and returns the cause.
type fullTier struct{ tier.Tier }

func (fullTier) Put(ctx context.Context, _ block.Key, _ mem.Extent) error {
	<-ctx.Done()
	return errors.Join(errdefs.ErrBusy, context.Cause(ctx))
}

func (t fullTier) Stats() tier.Stats {
	return tier.Stats{Waiting: 1, Failure: errors.New("a file cannot be removed")}
}

// A dump that waits for space in a tier must end with an error. Before that, Durable returns the
// reason of the delay.
func TestDefectDurableHasNoEnd(t *testing.T) {
	t.Parallel()
	testkit.Grow(t, time.Second, func(waitMax time.Duration) error {
		r := newRig(t, rigOptions{
			dirs: []string{t.TempDir()}, wrapFile: func(t tier.Tier) tier.Tier { return fullTier{t} },
			tune: func(c *store.Config) { c.WaitMax = waitMax },
		})
		task := r.startDump(1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), waitMax/100)
		defer cancel()
		early := task.Durable(ctx)
		r.must(task.SourceFree(r.ctx()))
		if err := task.Durable(r.ctx()); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("the last Durable: %v", err)
		}
		if !errors.Is(early, context.DeadlineExceeded) || !strings.Contains(early.Error(), "2 blocks are not durable yet") ||
			!strings.Contains(early.Error(), "1 writes wait for space") || !strings.Contains(early.Error(), "cannot be removed") {
			return fmt.Errorf("Durable while blocks are not durable yet: %w", early)
		}
		if st := r.st.Stats(); st.Tiers[1].LeftOut != 2 {
			t.Errorf("%+v", st)
		}
		return nil
	})
}

// With a read-only tier, loads read from it and dumps succeed without it.
func TestReadOnlyTierServesLoads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := newRig(t, rigOptions{dirs: []string{dir}})
	old.dump(1, 2)
	old.closeStore()
	r := newRig(t, rigOptions{dirs: []string{dir}, readOnly: true})
	r.mustLoad(1, 2)
	r.dump(3)
	r.mustLoad(3)
	if v, err := file.Inspect(t.Context(), dir); err != nil || v.Blocks != 2 {
		t.Errorf("%+v, %v", v, err)
	}
}

// If a load could not read a file, the next dump of the block replaces it.
func TestDefectUnreadableFileIsNeverHealed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := newRig(t, rigOptions{dirs: []string{dir}})
	old.dump(1)
	old.closeStore()
	key := old.key(1).String()
	bad, err := os.Stat(filepath.Join(dir, key[:2], key))
	old.must(err)
	f := faultfs.New(dirfs.OS(), nil, nil)
	f.Forbid(func(op, p string) error {
		now, err := os.Stat(p)
		if op == "read" && err == nil && os.SameFile(now, bad) {
			return syscall.EIO
		}
		return nil
	})
	r := newRig(t, rigOptions{dirs: []string{dir}, fileFS: f, slots: 2})
	if errs := r.load(store.LoadOptions{}, 1); !errors.Is(errs[0], syscall.EIO) {
		t.Errorf("load: %v", errs[0])
	}
	r.dump(1)
	r.dump(2, 3) // evicts block 1 from the cache
	r.mustLoad(1)
	if st := r.st.Stats(); st.Tiers[1].Hits == 0 || st.Tiers[1].Tier.Replaced != 1 {
		t.Errorf("%+v", st)
	}
}
