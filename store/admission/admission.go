// Package admission decides how much of a stored prefix is worth loading: as long as loading is
// faster than computing.
//
// A Model measures two times: to load a byte, by its source, and to compute a token. It cuts a
// prefix where it saves the most time. Until a time is known, everything is worth loading, so that
// it becomes known. Refused files are no longer measured: Probe reports when to load some again.
package admission

import (
	"math"
	"sync"
	"time"
)

// Source is the place of a block.
type Source uint8

// The sources.
const (
	Memory Source = iota // in the cache
	Files                // in a tier below
	sources
)

const (
	enough     = 3   // samples until a time is known
	weight     = 0.4 // weight of the latest sample
	fewTokens  = 256 // the time of fewer tokens depends on the number of steps
	probeAfter = time.Second
	probeShare = 10 // the smallest distance of probes, as a multiple of the duration of the last
)

// Model decides by measured times. All methods are safe for concurrent use. The zero value has no
// measurements.
type Model struct {
	mu    sync.Mutex
	load  [sources]mean // seconds a byte
	token mean          // seconds a token
	next  time.Time     // earliest time of the next probe
	busy  bool          // a probe has not ended
	stats Stats
}

// Stats counts the decisions of a model and has its measurements.
type Stats struct {
	Asked           int64   // calls of Worth
	Cut             int64   // calls that did not return all blocks
	BlocksRefused   int64   // blocks not worth loading
	Probes          int64   // probes started
	MemoryRate      float64 // bytes per second from the cache, or zero if not known
	FileRate        float64 // bytes per second from the tiers below, or zero if not known
	TokensPerSecond float64 // computed, or zero if not known
}

// mean is a moving mean of logarithms. A sample that is ten times slower has the same weight as one
// that is ten times faster, so that few samples show a change in either direction.
type mean struct {
	n   int
	log float64
}

func (m *mean) add(v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		return
	}
	if m.n == 0 {
		m.log = math.Log(v)
	}
	m.log += weight * (math.Log(v) - m.log)
	m.n++
}

func (m *mean) known() bool { return m.n >= enough }

// value returns the mean, or zero if it is not known.
func (m *mean) value() float64 {
	if !m.known() {
		return 0
	}
	return math.Exp(m.log)
}

func (m *mean) rate() float64 {
	if !m.known() {
		return 0
	}
	return math.Exp(-m.log)
}

// Loaded adds the time in which a load or prefetch has read bytes of each source.
func (m *Model) Loaded(memory, files int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := took.Seconds()
	if files == 0 {
		m.load[Memory].add(all / float64(memory))
		return
	}
	// Subtract the time of the bytes in memory, but count at least the files' share of the time.
	share := float64(files) / float64(memory+files)
	m.load[Files].add(max(all-float64(memory)*m.load[Memory].value(), all*share) / float64(files))
}

// Computed adds the time in which the program has computed the KV of a number of tokens. Less than
// 256 tokens are ignored.
func (m *Model) Computed(tokens int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tokens >= fewTokens {
		m.token.add(took.Seconds() / float64(tokens))
	}
}

// Worth returns how many blocks of a prefix to load, from the first: the number that saves the most
// time. tokens is the number of tokens of all blocks. source and bytes return the source and the
// size of a block.
func (m *Model) Worth(blocks int, tokens int64, source func(i int) Source, bytes func(i int) int64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Asked++
	if blocks == 0 || !m.token.known() {
		return blocks
	}
	each := m.token.value() * float64(tokens) / float64(blocks)
	load := [sources]float64{m.load[Memory].value(), m.load[Files].value()}
	n, saves, most := 0, 0.0, 0.0
	for i := range blocks {
		if saves += each - load[source(i)]*float64(bytes(i)); saves >= most {
			n, most = i+1, saves
		}
	}
	if n < blocks {
		m.stats.Cut++
		m.stats.BlocksRefused += int64(blocks - n)
	}
	return n
}

// Probe reports whether to load blocks that are not worth it, to measure them again. After true,
// the caller calls Probed.
func (m *Model) Probe(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy || now.Before(m.next) {
		return false
	}
	m.busy = true
	m.stats.Probes++
	return true
}

// Probed ends a probe at now. took is its duration.
func (m *Model) Probed(now time.Time, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.next = false, now.Add(max(probeAfter, probeShare*took))
}

// Stats returns the current figures.
func (m *Model) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.MemoryRate, s.FileRate, s.TokensPerSecond = m.load[Memory].rate(), m.load[Files].rate(), m.token.rate()
	return s
}
