package manager

import (
	"time"

	"github.com/kvlane/kvlane/store/admission"
)

// Worth returns how many blocks, from the first, are worth loading because that is faster than
// computing them. It uses the recent times of jobs that load, from Load to End, and those of
// Computed. states are the results of Lookup, and tokens is the number of tokens that all blocks
// save. Until these times are known, and with Config.AdmitAlways, it is all blocks. The blocks must
// be of one page group, since prefixes of other groups end elsewhere.
//
// If blocks in files are refused, Worth returns all blocks now and then, so that a load measures
// them again.
func (m *Manager) Worth(blocks []Block, states []State, tokens int64) int {
	n := min(len(blocks), len(states))
	if m.always {
		return n
	}
	source := func(i int) admission.Source {
		if states[i] == InFiles {
			return admission.Files
		}
		return admission.Memory
	}
	// Blocks in pools are free: the time of their jobs is that of the engine's steps.
	bytes := func(i int) int64 {
		if source(i) == admission.Memory {
			return 0
		}
		return m.blockBytes(blocks[i].Group)
	}
	worth := m.admission.Worth(n, tokens, source, bytes)
	below := int64(0)
	for i := worth; i < n; i++ {
		if source(i) == admission.Files {
			below += bytes(i)
		}
	}
	if below == 0 || !m.admission.Probe(m.clock.Now()) {
		return worth
	}
	// The caller need not load the blocks. So the probe ends here, with the expected time of a
	// load.
	elapsed := time.Duration(0)
	if rate := m.admission.Stats().FileRate; rate > 0 {
		elapsed = time.Duration(float64(below) / rate * float64(time.Second))
	}
	m.admission.Probed(m.clock.Now(), elapsed)
	return n
}

// Computed reports the time in which the engine has computed the KV of a number of tokens. Less
// than 256 tokens are ignored.
func (m *Manager) Computed(tokens int64, elapsed time.Duration) {
	m.admission.Computed(tokens, elapsed)
}
