// Package admission decides how much of a stored prefix is worth loading: as long as that is faster than computing it again.
//
// A Model knows two times, by measurement: of a byte from where it lies, and of a token to compute. A prefix ends where the time it
// saves is greatest. While one of the times is not known all is worth loading, so that it becomes known. Where files are
// refused nobody measures them any more: Probe says when it is time to look again.
package admission

import (
	"math"
	"sync"
	"time"
)

// Source is where a block lies.
type Source uint8

// The sources.
const (
	Memory Source = iota // in the cache
	Files                // in a tier below
	sources
)

const (
	enough     = 3   // samples of a time that make it known
	weight     = 0.4 // of the latest sample
	fewTokens  = 256 // fewer tokens tell of the steps of a computation more than of its rate
	probeAfter = time.Second
	probeShare = 10 // a probe comes after as many times as the last one took, or more
)

// Model is fed with what loads and computations took. Safe for concurrent use. The zero value knows nothing.
type Model struct {
	mu    sync.Mutex
	load  [sources]mean // seconds a byte
	token mean          // seconds a token
	next  time.Time     // when a probe may begin
	busy  bool          // one has begun and not ended
	stats Stats
}

// Stats is what a model has decided, and why.
type Stats struct {
	Asked           int64   // prefixes that were asked about
	Cut             int64   // of them, those that were not worth loading to their end
	BlocksRefused   int64   // that lay beyond there
	Probes          int64   // begun
	MemoryRate      float64 // bytes a second of loads from the cache; zero: not known
	FileRate        float64 // bytes a second of loads from the tiers below; zero: not known
	TokensPerSecond float64 // computed; zero: not known
}

// mean is a moving mean of logarithms: a sample that is ten times slower weighs as much as one that is ten times faster, so that
// what has changed is known after a few samples, whichever way.
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

// value is the mean, or zero where it is not known.
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

// Loaded notes that a load, or a prefetch, has brought bytes of each source in that time.
func (m *Model) Loaded(memory, files int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := took.Seconds()
	if files == 0 {
		m.load[Memory].add(all / float64(memory))
		return
	}
	// What memory takes by itself is not the files', but some of the time always is.
	share := float64(files) / float64(memory+files)
	m.load[Files].add(max(all-float64(memory)*m.load[Memory].value(), all*share) / float64(files))
}

// Computed notes that the program has computed the KV of so many tokens in that time. Few tokens are passed over.
func (m *Model) Computed(tokens int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tokens >= fewTokens {
		m.token.add(took.Seconds() / float64(tokens))
	}
}

// Worth returns how many blocks of a prefix to load, from the first on: as many as save the most time. tokens is how many all of them
// save from being computed, source where each lies, and bytes how long it is.
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

// Probe says whether it is time to load something that is not worth it, to see whether that is still so. One that it has said yes to ends
// with Probed.
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

// Probed says that a probe has ended, at that time, and how long it took.
func (m *Model) Probed(now time.Time, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.next = false, now.Add(max(probeAfter, probeShare*took))
}

// Stats returns the figures of now.
func (m *Model) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.MemoryRate, s.FileRate, s.TokensPerSecond = m.load[Memory].rate(), m.load[Files].rate(), m.token.rate()
	return s
}
