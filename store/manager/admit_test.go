package manager_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
)

// Admission depends on the times of jobs, by blocks in pools and in files, and on the times that
// the engine reports.
func TestFilesThatAreSlowerThanComputingAreRefused(t *testing.T) {
	for _, always := range []bool{false, true} {
		clock := clockwork.NewFakeClock()
		below, fs := &files{there: map[block.Key]bool{}}, formats(t, 0, 1, 1)
		m, err := manager.Open(manager.Config{OpenPool: pool(4, fs), Ranks: []manager.Rank{{Formats: fs, Below: []tier.Tier{below}}}, AdmitAlways: always, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		worth := func(hashes ...string) int {
			return m.Worth(named(hashes...), states(t, m, hashes...), int64(1000*len(hashes)), 0)
		}
		for i := range 20 {
			below.there[fs.Key(0, fmt.Appendf(nil, "f%d", i))] = true
		}
		if got := worth("f0", "f1"); got != 2 {
			t.Errorf("without measurements %d of 2 blocks are worth loading", got)
		}
		for i := range 3 { // 10 s for each block
			j := loaded(t, m, fmt.Sprintf("f%d", i))
			j.Loaded(10*time.Second, 0)
			end(t, j)
			m.Computed(1000, time.Second)
		}
		end(t, loaded(t, m, "f19"), 0) // its times are not reported
		want := 2
		if always {
			want = 5
		}
		probe := []string{"f0", "f1", "f7", "f8", "f9"}
		if got := worth(probe...); got != 5 {
			t.Errorf("the first that is refused is a probe, and %d of 5 blocks are worth loading", got)
		}
		clock.Advance(299 * time.Second) // it takes 30 s, and probes may use a tenth of the time
		if got := worth(probe...); got != want {
			t.Errorf("%d blocks of 5, 2 of which are in pools, are worth loading, not %d", got, want)
		}
		clock.Advance(2 * time.Second)
		if got := worth(probe...); got != 5 {
			t.Errorf("the second probe is missing: %d of 5 blocks are worth loading", got)
		}
		if s := m.Stats().Admission; !always && (s.Asked != 4 || s.Cut != 3 || s.BlocksRefused != 9 || s.Probes != 2 || s.FileRate == 0 || s.TokensPerSecond < 999) {
			t.Errorf("%+v", s)
		}
		for i := range 20 {
			j := loaded(t, m, fmt.Sprintf("f%d", 3+i%8))
			j.Loaded(time.Millisecond, 0)
			end(t, j)
		}
		if got := worth("f15", "f16"); got != 2 {
			t.Errorf("files have become fast, and %d of 2 blocks are worth loading", got)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// If memory is slow, or the engine uses blocks late, hits in memory are refused as well. They are
// measured again from time to time.
func TestHitsInMemoryAreRefusedIfComputingIsFaster(t *testing.T) {
	for _, c := range []struct {
		what          string
		elapsed, wait time.Duration // times of a load of one block with 1,000 tokens
		worth         bool
	}{
		{"fast memory", time.Millisecond, 2 * time.Millisecond, true},
		{"a load and a delay that take less than computing", 400 * time.Millisecond, 800 * time.Millisecond, true},
		{"slow memory", 2 * time.Second, 2 * time.Second, false},
		{"blocks that are used late", time.Millisecond, 5 * time.Second, false},
	} {
		clock := clockwork.NewFakeClock()
		fs := formats(t, 0, 1, 1)
		m, err := manager.Open(manager.Config{OpenPool: pool(4, fs), Ranks: []manager.Rank{{Formats: fs}}, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		j, err := m.Store(named("a"))
		if err != nil {
			t.Fatal(err)
		}
		end(t, j)
		for range 4 {
			m.Computed(1000, time.Second)
		}
		worth := func() int { return m.Worth(named("a"), states(t, m, "a"), 1000, 0) }
		for range 3 {
			if worth() != 1 {
				t.Fatalf("%s: refused before it is known", c.what)
			}
			j := loaded(t, m, "a")
			j.Loaded(c.elapsed, c.wait)
			end(t, j)
		}
		if probe, got := worth(), worth(); probe != 1 || got == 1 != c.worth {
			t.Errorf("%s: worth loading %d, and first %d: %+v", c.what, got, probe, m.Stats().Admission)
		}
		clock.Advance(51 * time.Second)
		for range 9 { // these are probes, after which memory is fast
			if worth() == 1 {
				j := loaded(t, m, "a")
				j.Loaded(time.Millisecond, 2*time.Millisecond)
				end(t, j)
			}
			clock.Advance(51 * time.Second)
		}
		if worth() != 1 {
			t.Errorf("%s: has become fast, and is refused: %+v", c.what, m.Stats().Admission)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
