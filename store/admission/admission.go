// Package admission decides how much of a stored prefix to load: the blocks that are faster to load
// than to compute.
//
// A Model measures, for each source, the time to load a byte and a fixed delay of the program, and
// also the time to compute a token and the least time of a step. A step takes the longer of its
// least time and that of its tokens. The model cuts a prefix at the block that saves the most time,
// and refuses it if its step would not end earlier.
//
// Unknown load times count as zero, so that blocks are loaded and measured. While the time of a
// token is unknown, all blocks are worth loading. Blocks that are not loaded are no longer measured:
// Probe reports when to load some of them again.
package admission

import (
	"iter"
	"math"
	"slices"
	"sync"
	"time"
)

// Source is a kind of tier that has a block.
type Source uint8

// The sources of blocks.
const (
	Memory Source = iota // in the cache
	Files                // in files
	Remote               // in block servers or buckets
)

// Sources is the number of sources.
const Sources = Remote + 1

// SourceOf returns the source of the tier with a name.
func SourceOf(tier string) Source {
	switch tier {
	case "cache":
		return Memory
	case "remote", "object":
		return Remote
	default:
		return Files
	}
}

// Bytes are numbers of bytes by source.
type Bytes [Sources]int64

const (
	minSamples    = 3    // number of samples after which a time is known
	weight        = 0.4  // weight of the latest sample
	fewTokens     = 256  // a step of fewer tokens takes its least time
	leastTimes    = 2    // a step of so many least times is as long as its tokens take
	tooShort      = 4    // no step takes the least time divided by this
	forgets       = 1.01 // growth of a bound with each sample
	medianSamples = 9    // number of samples in a median of delays
	probeAfter    = time.Second
	probeShare    = 10 // smallest interval between probes, divided by the duration of the last
)

// Model compares measured times of loading and computing. All methods are safe for concurrent use.
// The zero value has no measurements.
type Model struct {
	mu    sync.Mutex
	load  [Sources]mean      // seconds per byte
	delay [Sources]median    // delays reported by Delayed, in seconds
	token mean               // seconds per token, of steps that are as long as their tokens take
	most  bound              // seconds per token, at most, of other steps
	step  mean               // seconds of a step of few tokens
	next  [Sources]time.Time // earliest time of the next probe
	busy  [Sources]bool      // a probe is running
	stats Stats
}

// Stats counts the decisions of a model, and holds its measured times.
type Stats struct {
	Asked           int64         // calls of Worth
	Cut             int64         // calls that did not return all blocks
	BlocksRefused   int64         // blocks not worth loading
	Probes          int64         // probes started
	MemoryRate      float64       // bytes per second from the cache, or zero if not known
	FileRate        float64       // bytes per second from files, or zero if not known
	RemoteRate      float64       // bytes per second from servers and buckets, or zero
	MemoryDelay     time.Duration // fixed delay of loads from the cache, or zero if not known
	FileDelay       time.Duration // fixed delay of loads with blocks in files, or zero
	RemoteDelay     time.Duration // fixed delay of loads with blocks in block servers, or zero
	TokensPerSecond float64       // computed in long steps, or zero if not known
	Step            time.Duration // least time of a step, or zero if not known
}

// mean is a moving mean of logarithms: a sample that is ten times slower has the same weight as one
// that is ten times faster. A few samples therefore show a change in either direction.
type mean struct {
	n   int
	log float64
}

func (m *mean) add(v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		return
	}
	if m.n < 2 { // the first sample may include start-up time
		m.log = math.Log(v)
	}
	m.log += weight * (math.Log(v) - m.log)
	m.n++
}

func (m *mean) known() bool { return m.n >= minSamples }

// value returns the mean, or zero if there are too few samples.
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

// bound is the least sample. It grows slowly, so that a wrong one is forgotten.
type bound struct {
	n     int
	least float64
}

func (b *bound) add(v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		return
	}
	if b.forget(); b.n == 0 || v < b.least {
		b.least = v
	}
	b.n++
}

func (b *bound) forget() { b.least *= forgets }

// value returns the bound, or infinity if there are too few samples.
func (b *bound) value() float64 {
	if b.n < minSamples {
		return math.Inf(1)
	}
	return b.least
}

// median is the median of the latest samples. It ignores single extreme samples, including zeros.
type median struct {
	n       int
	samples [medianSamples]float64
}

func (m *median) add(v float64) {
	m.samples[m.n%medianSamples] = v
	m.n++
}

// value returns the median, or zero if there are too few samples.
func (m *median) value() float64 {
	if m.n < minSamples {
		return 0
	}
	sorted := slices.Clone(m.samples[:min(m.n, medianSamples)])
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// Loaded adds the duration of a load or prefetch that has read these numbers of bytes from each
// source. The duration excludes waits before the start and after the end. It measures the last
// source that has bytes.
func (m *Model) Loaded(bytes Bytes, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, total, others := Memory, 0.0, 0.0 // others is the expected time of the other sources
	for s := range Sources {
		if n := float64(bytes[s]); n > 0 {
			others += float64(bytes[last]) * m.load[last].value()
			last, total = s, total+n
		}
	}
	// Subtract the time of the other sources, but count at least the share of time in proportion to
	// the bytes.
	all, n := took.Seconds(), float64(bytes[last])
	m.load[last].add(max(all-others, all*n/total) / n)
}

// Delayed adds the time from the scheduling of a load to the use of its blocks, without the
// duration of the load and without the time in which other requests were computed.
func (m *Model) Delayed(source Source, delay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delay[source].add(max(0, delay.Seconds()))
}

// Computed adds the time of a step, in which the program has computed the KV of a number of tokens.
// Steps of fewer than 256 tokens measure the least time of a step. Of a step that takes about the
// least time, only a shorter time of a token counts. A step that takes far less measures the least
// time too.
func (m *Model) Computed(tokens int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, least := took.Seconds(), m.step.value()
	if tokens < fewTokens {
		if m.step.known() {
			all = min(all, leastTimes*least) // a pause of the program counts little
		}
		if m.step.add(all); m.step.n == minSamples {
			m.token = mean{} // which of its samples took the least time is known only now
		}
		return
	}
	switch each := all / float64(tokens); {
	case all < least/tooShort: // one of the two times is wrong
		m.step.add(all)
	case all < leastTimes*least:
		m.most.add(each)
	default:
		m.token.add(each)
		m.most.forget()
	}
}

// perToken returns the seconds per token, or zero if not known. The caller holds mu.
func (m *Model) perToken() float64 {
	each := m.most.value()
	if m.token.known() {
		each = min(each, m.token.value())
	}
	if math.IsInf(each, 1) {
		return 0
	}
	return each
}

// Prefix describes the blocks of a prefix.
type Prefix struct {
	Blocks int
	Tokens int64              // of all blocks
	Rest   int64              // tokens that are computed in any case, of other requests too
	Source func(i int) Source // of block i
	Bytes  func(i int) int64  // of block i
}

// Worth returns the number of blocks, from the first, whose loading saves the most time.
func (m *Model) Worth(p Prefix) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Asked++
	token := m.perToken()
	if p.Blocks == 0 || token == 0 {
		return p.Blocks
	}
	each := token * float64(p.Tokens) / float64(p.Blocks)
	n, most, loading := 0, 0.0, 0.0
	for i, cost := range m.costs(p) {
		if saves := each*float64(i+1) - cost; saves >= most {
			n, most, loading = i+1, saves, cost
		}
	}
	// The end of a prefix may save no time of the step, but it spares the device. So the prefix is
	// loaded whole or not at all.
	rest := token * float64(p.Rest)
	with, without := rest+each*float64(p.Blocks-n), rest+each*float64(p.Blocks)
	if least := m.step.value(); max(without, least)-max(with, least) < loading {
		n = 0
	}
	if n < p.Blocks {
		m.stats.Cut++
		m.stats.BlocksRefused += int64(p.Blocks - n)
	}
	return n
}

// costs yields, for each i, the seconds to load the first i+1 blocks of a prefix. The caller holds
// mu.
func (m *Model) costs(p Prefix) iter.Seq2[int, float64] {
	var load, delay [Sources]float64
	for s := range Sources {
		load[s], delay[s] = m.load[s].value(), m.delay[s].value()
	}
	return func(yield func(int, float64) bool) {
		moved, waits := 0.0, 0.0
		for i := range p.Blocks {
			source := p.Source(i)
			moved += load[source] * float64(p.Bytes(i))
			waits = max(waits, delay[source])
			if !yield(i, moved+waits) {
				return
			}
		}
	}
}

// Cost returns the expected time of loading a whole prefix.
func (m *Model) Cost(p Prefix) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := 0.0
	for _, cost := range m.costs(p) {
		last = cost
	}
	return seconds(last)
}

func seconds(s float64) time.Duration { return time.Duration(min(s, 1e9) * float64(time.Second)) }

// Probe reports whether to load blocks of a source although computing is faster, to measure the
// source again. If it returns true, the caller must call Probed after the load.
func (m *Model) Probe(source Source, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[source] || now.Before(m.next[source]) {
		return false
	}
	m.busy[source] = true
	m.stats.Probes++
	return true
}

// Probed ends a probe at now. took is its duration.
func (m *Model) Probed(source Source, now time.Time, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy[source], m.next[source] = false, now.Add(max(probeAfter, probeShare*took))
}

// Stats returns the current figures.
func (m *Model) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.MemoryRate, s.FileRate, s.RemoteRate = m.load[Memory].rate(), m.load[Files].rate(), m.load[Remote].rate()
	s.MemoryDelay, s.FileDelay, s.RemoteDelay = seconds(m.delay[Memory].value()), seconds(m.delay[Files].value()), seconds(m.delay[Remote].value())
	if token := m.perToken(); token > 0 {
		s.TokensPerSecond = 1 / token
	}
	s.Step = seconds(m.step.value())
	return s
}
