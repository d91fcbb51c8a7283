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

// machine is a simulated machine. Its GPU computes the prefix in 0.9 s, and memory and files have
// fixed rates.
type machine struct {
	admission.Model
	memory, files time.Duration // for all blocks
	below         int           // index of the first block that is in files
}

func (m *machine) worth() int {
	return m.Worth(prefix(func(i int) bool { return i >= m.below }))
}

func prefix(inFiles func(i int) bool) admission.Prefix {
	return admission.Prefix{
		Blocks: blocks, Tokens: tokens,
		Source: func(i int) admission.Source {
			if inFiles(i) {
				return admission.Files
			}
			return admission.Memory
		},
		Bytes: func(int) int64 { return blockBytes },
	}
}

// load loads the first n blocks.
func (m *machine) load(n int) {
	above := min(n, m.below)
	took := time.Duration(above)*(m.memory/blocks) + time.Duration(n-above)*(m.files/blocks)
	m.Loaded(admission.Bytes{int64(above) * blockBytes, int64(n-above) * blockBytes}, took)
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

// Probes of eight blocks measure the files again.
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
		if m.Probe(admission.Files, now) {
			if m.Probe(admission.Files, now) {
				t.Fatal("two probes at a time")
			}
			m.load(8)
			m.Probed(admission.Files, now, 8*m.files/blocks)
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
	if !m.Probe(admission.Files, now) {
		t.Fatal("the first probe is missing")
	}
	m.Probed(admission.Files, now.Add(4*time.Second), 4*time.Second)
	if m.Probe(admission.Files, now.Add(43*time.Second)) {
		t.Error("a probe of 4 s is followed by another after 39 s")
	}
	if !m.Probe(admission.Files, now.Add(44*time.Second)) {
		t.Error("a probe of 4 s is not followed by another after 40 s")
	}
}

// Blocks behind slow ones are worth loading if they save more time than the slow ones cost.
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
	slow := func(from, to int) int { return m.Worth(prefix(func(i int) bool { return from <= i && i < to })) }
	if n := slow(100, 300); n != blocks {
		t.Errorf("200 slow blocks before 1700 fast ones: %d are worth loading", n)
	}
	if n := slow(100, 1500); n != 100 {
		t.Errorf("1400 slow blocks before 500 fast ones: %d are worth loading", n)
	}
}

func TestNoTimeIsIgnored(t *testing.T) {
	m := &machine{files: 40 * time.Second}
	for range 10 {
		m.load(blocks)
		m.Computed(tokens, 0)
	}
	m.want(t, "no computation is known", blocks)
}

// hit returns a prefix in memory, in blocks of 16 tokens, of a model on two GPUs with 64 KiB for
// each token.
func hit(tokens int64) admission.Prefix {
	return admission.Prefix{
		Blocks: int(tokens / 16), Tokens: tokens,
		Source: func(int) admission.Source { return admission.Memory },
		Bytes:  func(int) int64 { return 1 << 20 },
	}
}

// The first case is that of examples/ttft/tp.py on two H100s. Prompts of 1,024 tokens take 33.6 ms,
// most of which is the fixed time of a step. A load of 816 tokens takes 1 ms, and the program needs
// 15 ms around it.
func TestAHitThatTakesLongerThanComputingIsRefused(t *testing.T) {
	for _, c := range []struct {
		what     string
		prompt   int64         // tokens of computed prompts
		computed time.Duration // time to compute such a prompt
		delay    time.Duration
		hit      int64
		rest     int64 // tokens that are computed in any case
		loaded   bool
	}{
		{"a step that is as long without the prefix", 1024, 33600 * time.Microsecond, 15 * time.Millisecond, 816, 208, false},
		{"the same without a delay", 1024, 33600 * time.Microsecond, 0, 816, 0, false},
		{"the same beside other requests", 1024, 33600 * time.Microsecond, 15 * time.Millisecond, 816, 4000, true},
		{"a long prompt", 8192, 270 * time.Millisecond, 15 * time.Millisecond, 8192, 0, true},
		{"its first 512 tokens", 8192, 270 * time.Millisecond, 0, 512, 7680, true},
		{"its first 512 tokens with a delay", 8192, 270 * time.Millisecond, 18 * time.Millisecond, 512, 7680, false},
		{"a large delay", 8192, 270 * time.Millisecond, 300 * time.Millisecond, 8192, 0, false},
	} {
		var m admission.Model
		for range 5 {
			m.Computed(208, 30*time.Millisecond)
			m.Computed(c.prompt, c.computed)
			m.Loaded(admission.Bytes{c.hit << 16}, time.Duration(c.hit<<16)*time.Second/53e9)
			m.Delayed(admission.Memory, c.delay)
		}
		p := hit(c.hit)
		p.Rest = c.rest
		want := 0
		if c.loaded {
			want = p.Blocks
		}
		if got := m.Worth(p); got != want {
			t.Errorf("%s: %d blocks of %d are worth loading, not %d: %+v", c.what, got, p.Blocks, want, m.Stats())
		}
		if s := m.Stats(); s.MemoryRate < 52e9 || s.MemoryRate > 54e9 || s.Step < 29*time.Millisecond || s.MemoryDelay != c.delay {
			t.Errorf("%s: figures: %+v", c.what, s)
		}
	}
}

// While most prompts are hits, most steps have few tokens and take about the least time. They must
// not count as the time of their tokens. A model that did so believed 8,000 tokens a second where an
// H200 computed 35,000, and loaded prefixes that were computed in less time.
func TestStepsOfHitsDoNotMeasureTokens(t *testing.T) {
	var m admission.Model
	for i := range 40 {
		m.Computed(16, 40*time.Millisecond)
		if i < 6 {
			m.Computed(8320, 245*time.Millisecond)
		}
		m.Computed(300, time.Duration(38+i%10)*time.Millisecond)
		m.Loaded(admission.Bytes{1 << 30}, 22*time.Millisecond)
		m.Delayed(admission.Memory, 8*time.Millisecond)
	}
	if s := m.Stats(); s.TokensPerSecond < 30e3 || s.TokensPerSecond > 40e3 {
		t.Errorf("%+v", s)
	}
	m.Computed(2176, 45*time.Millisecond) // shows that tokens take less time than was known
	if s := m.Stats(); s.TokensPerSecond < 47e3 || s.TokensPerSecond > 49e3 {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		what         string
		tokens, rest int64
		loaded       bool
	}{
		{"a short prefix alone", 2048, 128, false},
		{"a short prefix beside other prompts", 2048, 4096, true},
		{"a long prefix", 8192, 128, true},
	} {
		p := hit(c.tokens)
		p.Bytes, p.Rest = func(int) int64 { return 2 << 20 }, c.rest
		if got := m.Worth(p); (got == p.Blocks) != c.loaded || got != 0 && got != p.Blocks {
			t.Errorf("%s: %d blocks of %d are worth loading: %+v", c.what, got, p.Blocks, m.Stats())
		}
	}
}

// The delay must not change if requests sometimes wait for other reasons.
func TestADelayIsTheProgramsOwn(t *testing.T) {
	var m admission.Model
	for i := range 50 {
		switch {
		case i%4 == 0:
			m.Delayed(admission.Memory, time.Minute)
		case i%5 == 0: // the load has taken the whole time
			m.Delayed(admission.Memory, -time.Second)
		default:
			m.Delayed(admission.Memory, 10*time.Millisecond)
		}
		if s := m.Stats(); i > 10 && (s.MemoryDelay < 9*time.Millisecond || s.MemoryDelay > 11*time.Millisecond || s.FileDelay != 0) {
			t.Fatalf("after %d loads: %+v", i, s)
		}
	}
}

// The first step is ignored, because it includes the time to load kernels.
func TestTheFirstStepDoesNotCount(t *testing.T) {
	var m admission.Model
	m.Computed(1000, time.Minute)
	for range 3 {
		m.Computed(1000, 10*time.Millisecond)
	}
	if s := m.Stats(); s.TokensPerSecond < 99e3 || s.TokensPerSecond > 101e3 {
		t.Errorf("%+v", s)
	}
}

// Block servers are measured apart from files. Each source is refused by its own time.
func TestServersAreMeasuredApartFromFiles(t *testing.T) {
	for _, slow := range []admission.Source{admission.Files, admission.Remote} {
		m := &machine{}
		compute(m)
		each := int64(blocks * blockBytes)
		for range 5 {
			for _, s := range []admission.Source{admission.Memory, admission.Files, admission.Remote} {
				took := 80 * time.Millisecond
				if s == slow {
					took = 40 * time.Second
				}
				var bytes admission.Bytes
				bytes[s] = each
				m.Loaded(bytes, took)
			}
			if slow == admission.Remote { // a load of all sources measures the last one alone
				m.Loaded(admission.Bytes{each, each, each}, 40*time.Second+160*time.Millisecond)
			}
			m.Delayed(admission.Remote, 7*time.Millisecond)
		}
		for _, s := range []admission.Source{admission.Memory, admission.Files, admission.Remote} {
			p := prefix(func(int) bool { return false })
			p.Source = func(int) admission.Source { return s }
			want := blocks
			if s == slow {
				want = 0
			}
			if got := m.Worth(p); got != want {
				t.Errorf("source %d is slow: %d blocks of source %d are worth loading, not %d: %+v", slow, got, s, want, m.Stats())
			}
		}
		fast := m.Stats().RemoteRate
		if slow == admission.Remote {
			fast = m.Stats().FileRate
		}
		if s := m.Stats(); fast < 45e9 || fast > 60e9 || s.RemoteDelay != 7*time.Millisecond || s.FileDelay != 0 {
			t.Errorf("source %d is slow: %+v", slow, s)
		}
	}
}
