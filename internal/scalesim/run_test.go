package scalesim

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestScale simulates 100 servers with 10^6 runs, and checks what must hold at any size.
func TestScale(t *testing.T) {
	testkit.SkipRace(t, "TestEqualSeedsHaveEqualReports runs the same code")
	r, err := Run(Config{Seed: 1, Rate: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	if r.BytesRatio > 1.05 {
		t.Errorf("the busiest server has %.3f of the mean bytes, want at most 1.05", r.BytesRatio)
	}
	if r.Config.CacheRuns > r.Config.Runs/100 || math.Abs(r.Hottest-0.1) > 0.002 {
		t.Errorf("caches of %d of %d runs, and a hottest run with %.3f of the requests", r.Config.CacheRuns, r.Config.Runs, r.Hottest)
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.RequestsRatio > 1.25 {
			t.Errorf("%s: the busiest server has %.3f of the mean requests, want at most 1.25", p.Name, p.RequestsRatio)
		}
		if p.Ideal > 0 && math.Abs(p.Moved-p.Ideal) > 0.2*p.Ideal {
			t.Errorf("%s: %.5f of the runs moved, want %.5f", p.Name, p.Moved, p.Ideal)
		}
		if p.LostShare > 0 {
			checkLoss(t, p)
		}
		switch p.Name {
		case "steady":
			if p.LostMisses+p.OtherMisses+p.Failures+p.Refusals > 0 {
				t.Errorf("misses without a reason: %+v", p)
			}
		case "a server joins", "a server drains, and leaves":
			if misses := float64(p.LostMisses + p.OtherMisses); misses > 0.5*p.Ideal*float64(p.Lookups) || p.Failures+p.Refusals > 0 {
				t.Errorf("%s: %.0f misses of %d lookups, %d failed: fewer runs must be lost than move", p.Name, misses, p.Lookups, p.Failures)
			}
		case "a server is slow":
			if p.LeftOut == 0 || p.LeftOut > 40*time.Second || p.LostMisses > 0 {
				t.Errorf("a slow server was left out after %v, %d misses of lost runs", p.LeftOut, p.LostMisses)
			}
		}
	}
}

// checkLoss checks that lost servers cost their share of the hits, and that half of them come back.
func checkLoss(t *testing.T, p *Phase) {
	t.Helper()
	noise := 5 * math.Sqrt(p.LostShare*float64(p.Lookups)/10)
	if most := p.LostShare + noise/(float64(p.Lookups)/10); p.FirstLost > most || p.FirstLost < p.LostShare/2 {
		t.Errorf("%s: %.5f of the lookups missed, the share of the servers is %.5f (at most %.5f)", p.Name, p.FirstLost, p.LostShare, most)
	}
	if p.OtherMisses > 0 {
		t.Errorf("%s: %d misses of runs that other servers have", p.Name, p.OtherMisses)
	}
	if p.Half == 0 || p.Half > 60*time.Second {
		t.Errorf("%s: half of the lost hits were back after %v", p.Name, p.Half)
	}
}

// TestHotRunsWithoutCaches checks that replicas spread the hottest run.
func TestHotRunsWithoutCaches(t *testing.T) {
	testkit.SkipRace(t, "TestEqualSeedsHaveEqualReports runs the same code")
	r, err := Balance(Config{Seed: 1, CacheRuns: -1, Rate: 4000, Warm: 40 * time.Second, Phase: 40 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if alone := r.Hottest * float64(r.Config.Servers); r.RequestsRatio > alone/2 || r.HitRate > 0 {
		t.Errorf("the busiest server has %.2f of the mean requests, without replicas %.2f; hit rate of no caches %.2f", r.RequestsRatio, alone, r.HitRate)
	}
}

// TestEqualSeedsHaveEqualReports runs a small simulation twice.
func TestEqualSeedsHaveEqualReports(t *testing.T) {
	report := func(seed uint64) string {
		r, err := Run(Config{Seed: seed, Servers: 20, Runs: 20_000, Clients: 4, Rate: 1000, Warm: 20 * time.Second, Phase: 40 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		for _, err := range []error{r.Write(&b), r.WriteBalance(&b), r.WriteHits(&b)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	first := report(7)
	if again := report(7); again != first {
		t.Error("two reports of one seed differ")
	}
	if report(8) == first {
		t.Error("reports of two seeds are equal")
	}
}

func TestPopularityIsZipfs(t *testing.T) {
	testkit.SkipRace(t, "it has one goroutine")
	for _, n := range []int{100_000, 1_000_000, 16_000_000} {
		if got := 1 / zeta(n, zipfOf(n, 0.1)); math.Abs(got-0.1) > 1e-4 {
			t.Errorf("the first of %d runs has %.5f of the requests, want 0.1", n, got)
		}
	}
	exact := 0.0
	for k := 1; k <= 100_000; k++ {
		exact += math.Pow(float64(k), -1.1)
	}
	if got := zeta(100_000, 1.1); math.Abs(got-exact) > 1e-5 {
		t.Errorf("zeta %v, want %v", got, exact)
	}
}

func TestCacheKeepsTheRecentRuns(t *testing.T) {
	c := newCache(ways)
	for run := range uint32(ways) {
		c.add(run)
	}
	c.use(0)
	c.add(100)
	if !c.use(0) || !c.use(100) || c.use(1) {
		t.Error("the cache does not drop its least recently used run")
	}
	if none := newCache(0); none.use(1) {
		t.Error("no cache has a run")
	}
}

// TestTextOfALoss checks that a time that was not reached is not printed as one.
func TestTextOfALoss(t *testing.T) {
	for half, want := range map[time.Duration]string{
		0:                "missed. 50% of the lost hits were back after 60 s.",
		11 * time.Second: "missed. Half of the lost hits were back after 11 s, 50% after 60 s.",
	} {
		r := Report{Phases: []Phase{{Name: "loss", Lookups: 1, LostShare: 0.1, Half: half, Back: 0.5, End: time.Minute}}}
		var text strings.Builder
		if err := r.Write(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v, %s", err, text.String())
		}
	}
}
