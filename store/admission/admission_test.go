package admission_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/store/admission"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	blocks     = 2000
	tokens     = 32_000
	blockBytes = 2 << 20
)

// machine is simulated: its GPU computes the prefix in 0.9 s, and memory and files have fixed
// rates.
type machine struct {
	admission.Model
	memory, files time.Duration // for all blocks
	below         int           // the first block that is in files
}

func (m *machine) worth() int {
	return m.Worth(blocks, tokens, func(i int) admission.Source {
		if i >= m.below {
			return admission.Files
		}
		return admission.Memory
	}, func(int) int64 { return blockBytes })
}

// load loads the first n blocks.
func (m *machine) load(n int) {
	above := min(n, m.below)
	took := time.Duration(above)*(m.memory/blocks) + time.Duration(n-above)*(m.files/blocks)
	m.Loaded(int64(above)*blockBytes, int64(n-above)*blockBytes, took)
}

func (m *machine) want(t *testing.T, what string, n int) {
	t.Helper()
	if got := m.worth(); got != n {
		t.Errorf("%s: %d blocks of %d are worth loading, not %d: %+v", what, got, blocks, n, m.Stats())
	}
}

func compute(m *machine) {
	for range 3 {
		m.Computed(tokens, 900*time.Millisecond)
	}
}

func TestADiskThatIsSlowerThanComputingIsRefused(t *testing.T) {
	m := &machine{memory: 80 * time.Millisecond, files: 40 * time.Second}
	m.want(t, "nothing is known", blocks)
	compute(m)
	m.want(t, "no load is known", blocks)
	for range 3 {
		m.want(t, "loads are hardly known", blocks)
		m.load(blocks)
	}
	m.want(t, "files of 40 s", 0)
	m.below = 700
	m.want(t, "700 blocks in memory, which is not known", 700)
	for range 3 {
		m.load(700)
	}
	m.want(t, "700 blocks in memory", 700)
	m.below = blocks
	m.want(t, "all in memory", blocks)
	s := m.Stats()
	if s.Asked != 9 || s.Cut != 3 || s.BlocksRefused != blocks+1300+1300 || s.FileRate < 90e6 || s.FileRate > 120e6 || s.MemoryRate < 45e9 || s.TokensPerSecond < 35e3 {
		t.Errorf("figures: %+v", s)
	}
}

// Probes of eight blocks measure.
func TestADiskThatHasBecomeFastAgainIsUsed(t *testing.T) {
	m := &machine{memory: 80 * time.Millisecond, files: 400 * time.Millisecond}
	compute(m)
	for range 20 {
		m.load(blocks)
	}
	m.want(t, "fast files", blocks)
	m.files = 40 * time.Second
	loads := 0
	for ; m.worth() == blocks; loads++ {
		m.load(blocks)
	}
	if loads > 5 {
		t.Errorf("%d loads of 40 s until they are refused", loads)
	}
	m.files = 400 * time.Millisecond
	now, probes := time.Unix(0, 0), 0
	for ; m.worth() != blocks; now = now.Add(100 * time.Millisecond) {
		if m.Probe(now) {
			if m.Probe(now) {
				t.Fatal("two probes at a time")
			}
			m.load(8)
			m.Probed(now, 8*m.files/blocks)
			probes++
		}
	}
	if probes > 5 || now.After(time.Unix(10, 0)) {
		t.Errorf("%d probes in %v until files are used again", probes, now.Sub(time.Unix(0, 0)))
	}
}

func TestProbesTakeLittleOfTheTime(t *testing.T) {
	var m admission.Model
	now := time.Unix(0, 0)
	if !m.Probe(now) {
		t.Fatal("there is no first probe")
	}
	m.Probed(now.Add(4*time.Second), 4*time.Second)
	if m.Probe(now.Add(43 * time.Second)) {
		t.Error("a probe of 4 s is followed by another after 39 s")
	}
	if !m.Probe(now.Add(44 * time.Second)) {
		t.Error("a probe of 4 s is not followed by another after 40 s")
	}
}

// What lies beyond something slow is worth it where it saves more than that costs.
func TestAFewSlowBlocksDoNotHideManyFastOnes(t *testing.T) {
	m := &machine{memory: 80 * time.Millisecond, files: 2 * time.Second}
	compute(m)
	for range 3 {
		m.load(blocks)
	}
	m.below = blocks
	for range 3 {
		m.load(blocks)
	}
	slow := func(from, to int) int {
		return m.Worth(blocks, tokens, func(i int) admission.Source {
			if from <= i && i < to {
				return admission.Files
			}
			return admission.Memory
		}, func(int) int64 { return blockBytes })
	}
	if n := slow(100, 300); n != blocks {
		t.Errorf("200 slow blocks before 1700 fast ones: %d are worth loading", n)
	}
	if n := slow(100, 1500); n != 100 {
		t.Errorf("1400 slow blocks before 500 fast ones: %d are worth loading", n)
	}
}

func TestFewTokensAndNoTimeAreIgnored(t *testing.T) {
	m := &machine{files: 40 * time.Second}
	for range 10 {
		m.load(blocks)
		m.Computed(255, time.Second)
		m.Computed(tokens, 0)
	}
	m.want(t, "no computation is known", blocks)
}
