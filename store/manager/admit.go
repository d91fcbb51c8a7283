package manager

import (
	"slices"
	"time"

	"github.com/kvlane/kvlane/store/admission"
)

// Worth returns the number of blocks, from the first, that are faster to load than to compute. It
// uses the recent times of Job.Loaded and of Computed. states are the results of Lookup. tokens is
// the number of tokens that all blocks save, and rest the number that the engine computes in any
// case at the same time: the other tokens of the request, and those of other requests. While these times are unknown, and with
// Config.AdmitAlways, Worth returns all blocks. The blocks must be of one page group, because
// prefixes of other groups have other lengths.
//
// If Worth refuses blocks, it occasionally returns all blocks nevertheless, so that a load measures
// them again.
func (m *Manager) Worth(blocks []Block, states []State, tokens, rest int64) int {
	n := min(len(blocks), len(states))
	if m.always {
		return n
	}
	p := admission.Prefix{
		Blocks: n, Tokens: tokens, Rest: rest,
		Source: func(i int) admission.Source { return sourceOf(states[i]) },
		Bytes:  func(i int) int64 { return m.blockBytes(blocks[i].Group) },
	}
	worth := m.admission.Worth(p)
	if worth == n {
		return n
	}
	source := sourceOf(slices.Max(states[worth:n]))
	if !m.admission.Probe(source, m.clock.Now()) {
		return worth
	}
	// The caller need not load the blocks, so end the probe here, with the expected duration of a
	// load.
	m.admission.Probed(source, m.clock.Now(), m.admission.Cost(p))
	return n
}

func sourceOf(s State) admission.Source {
	switch s {
	case InFiles:
		return admission.Files
	case InRemote:
		return admission.Remote
	default:
		return admission.Memory
	}
}

// Loaded reports the times of a load job. Call it before End. elapsed is the duration of the
// slowest worker's load. wait is the time from the decision to load to the use of the blocks,
// without the time in which the engine computed other requests. If wait is not positive, the delay
// is not measured.
func (j *Job) Loaded(elapsed, wait time.Duration) {
	if !j.load || len(j.blocks) == 0 || elapsed <= 0 {
		return
	}
	var bytes admission.Bytes
	var slowest admission.Source
	for i := range j.blocks {
		source := sourceOf(j.blocks[i].from)
		bytes[source] += j.m.blockBytes(j.blocks[i].name.Group)
		slowest = max(slowest, source)
	}
	j.m.admission.Loaded(bytes, elapsed)
	if wait > 0 {
		j.m.admission.Delayed(slowest, wait-elapsed)
	}
}

// Computed reports the time in which the engine has computed the KV of a number of tokens. Steps of
// fewer than 256 tokens measure the fixed time of a step.
func (m *Manager) Computed(tokens int64, elapsed time.Duration) {
	m.admission.Computed(tokens, elapsed)
}
