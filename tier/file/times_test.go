package file_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// timesOf returns the file times of the blocks.
func timesOf(t *testing.T, c file.Config, keys []block.Key) (times []time.Time) {
	t.Helper()
	for _, key := range keys {
		info, err := os.Stat(find(t, c.Dirs, key))
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, info.ModTime())
	}
	return times
}

// wantTimes checks that the file time of keys[i] is i microseconds before first.
func wantTimes(t *testing.T, c file.Config, what string, keys []block.Key, first time.Time) {
	t.Helper()
	for i, when := range timesOf(t, c, keys) {
		if want := first.Add(-time.Duration(i) * time.Microsecond); !when.Equal(want) {
			t.Errorf("%s: the time of block %d is %v after the expected one", what, i, when.Sub(want))
		}
	}
}

// waitUsed reports a use of the blocks, and waits until the last file has the expected time.
func waitUsed(t *testing.T, tr *file.Tier, c file.Config, keys []block.Key, want time.Time) {
	t.Helper()
	tr.Use(keys, tier.Place{})
	for end := time.Now().Add(testkit.Patience()); !timesOf(t, c, keys[len(keys)-1:])[0].Equal(want); {
		if time.Now().After(end) {
			t.Fatal("a use does not renew the times of a prompt")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTimesFollowTheOrderOfAPrompt(t *testing.T) {
	c := config(t)
	c.Dirs = append(c.Dirs, t.TempDir())
	plan, began := fault.New(1), time.Now().Truncate(time.Microsecond)
	clock := clockwork.NewFakeClockAt(began)
	c.FS, c.Clock, c.TouchAfter = faultfs.New(dirfs.OS(), plan, clock), clock, time.Minute
	tr, o, all := open(t, c), tier.NewOrder(100), keys(0, 12)
	tr.SetOrder(o)

	// Writers store blocks in any order while the clock advances.
	o.Note(all[:8], tier.Place{})
	for _, i := range []int{3, 5, 1, 0, 7, 2, 6, 4} {
		put(t, tr, c.Formats[0], all[i])
		clock.Advance(time.Second)
	}
	wantTimes(t, c, "a new prompt", all[:8], began)

	// An extension of a prompt gets the time of the prompt.
	o.Note(all[8:10], o.After(all[7], all[8]))
	put(t, tr, c.Formats[0], all[9], all[8])
	wantTimes(t, c, "an extension", all[:10], began)

	// A use renews all times to one moment, and writes each once.
	clock.Advance(time.Hour)
	used := clock.Now()
	waitUsed(t, tr, c, all[:10], used.Add(-9*time.Microsecond))
	wantTimes(t, c, "a use", all[:10], used)
	seen := plan.Seen("settime")
	clock.Advance(59 * time.Second)
	tr.Use(all[:10], tier.Place{})
	if n := plan.Seen("settime"); n != seen {
		t.Errorf("%d times were set within TouchAfter", n-seen)
	}

	// A branch that is stale does not become newer than the blocks that it shares with another
	// prompt.
	branch := append(slices.Clone(all[:2]), all[10:12]...)
	o.Note(branch, tier.Place{})
	put(t, tr, c.Formats[0], branch[2:]...)
	setTimes(t, c.Dirs, branch[2:])
	clock.Advance(time.Hour)
	newer := clock.Now()
	waitUsed(t, tr, c, all[:10], newer.Add(-9*time.Microsecond))
	clock.Advance(30 * time.Second)
	waitUsed(t, tr, c, branch, newer.Add(-3*time.Microsecond))
	wantTimes(t, c, "a branch", branch, newer)
	if st := tr.Stats(); st.Errors != 0 {
		t.Errorf("%+v", st)
	}
}

// A block is stored even if its file time cannot be set.
func TestTimeThatCannotBeSet(t *testing.T) {
	c := config(t)
	plan := fault.New(1, fault.Every("settime", 1).Fail(nil))
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr, o, all := open(t, c), tier.NewOrder(100), keys(0, 2)
	tr.SetOrder(o)
	o.Note(all, tier.Place{})
	put(t, tr, c.Formats[0], all...)
	if st := tr.Stats(); st.Errors != 2 || st.Puts != 2 {
		t.Errorf("%+v", st)
	}
}

// A file time in the future counts as now. Such a block is evicted before blocks that are used
// later, in the order of the times.
func TestTimesAheadOfTheClockAreCorrected(t *testing.T) {
	collects := map[string]func(t *testing.T, tr *file.Tier, c file.Config, bytes int64){
		"by the tier": func(t *testing.T, tr *file.Tier, _ file.Config, bytes int64) {
			if _, err := tr.GC(t.Context(), bytes); err != nil {
				t.Error(err)
			}
		},
		"by the command": func(t *testing.T, _ *file.Tier, c file.Config, bytes int64) {
			if r, err := file.GC(t.Context(), c.Dirs[0], bytes, nil); err != nil || r.Left != nil {
				t.Error(err, r.Left)
			}
		},
	}
	for name, collect := range collects {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			tr, all := open(t, c), keys(0, 9)
			// Without an order the file system sets the times, and its clock is some milliseconds
			// late.
			tr.SetOrder(tier.NewOrder(100))
			n := c.Formats[0].Layout.ImageBytes()
			put(t, tr, c.Formats[0], all[:4]...)
			ahead := time.Now().Add(time.Hour)
			for i, key := range all[:4] {
				when := ahead.Add(-time.Duration(i) * time.Microsecond)
				if err := os.Chtimes(path(c.Dirs[0], key), when, when); err != nil {
					t.Fatal(err)
				}
			}
			old := []block.Key{tiertest.Key(100)}
			put(t, tr, c.Formats[0], old...)
			setTimes(t, c.Dirs, old)
			collect(t, tr, c, 4*n) // evicts the block that is really old
			for i, when := range timesOf(t, c, all[:4]) {
				if when.After(time.Now()) {
					t.Errorf("the time of block %d is still ahead of the clock", i)
				}
			}
			put(t, tr, c.Formats[0], all[4:]...)
			collect(t, tr, c, 7*n)
			want := []bool{true, true, false, false, true, true, true, true, true}
			if got := present(t, tr, all); !slices.Equal(got, want) {
				t.Errorf("blocks left: %v, want %v", got, want)
			}
		})
	}
}

// A use of a whole prompt puts its blocks in order, even if they were stored without an order.
func TestUseBringsBlocksIntoOrder(t *testing.T) {
	c := config(t)
	now := time.Now().Truncate(time.Microsecond)
	c.Clock, c.TouchAfter = clockwork.NewFakeClockAt(now), time.Hour
	tr, all := open(t, c), keys(0, 3)
	tr.SetOrder(tier.NewOrder(100))
	put(t, tr, c.Formats[0], all...)
	for i, age := range []time.Duration{time.Minute, time.Second, 2 * time.Hour} {
		if err := os.Chtimes(path(c.Dirs[0], all[i]), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr = open(t, c)
	tr.SetOrder(tier.NewOrder(100))
	first := now.Add(-time.Minute)
	waitUsed(t, tr, c, all, first.Add(-2*time.Microsecond))
	wantTimes(t, c, "a use", all, first)
}
