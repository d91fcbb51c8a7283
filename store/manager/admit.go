package manager

import (
	"time"

	"github.com/kvlane/kvlane/store/admission"
)

// Worth returns how many of the blocks, from the first on, are worth loading, as that is faster than computing them again: by what jobs
// that load have taken lately, from Load to End, and by Computed. states is what Lookup said of them, and tokens how many all of
// them save. It is all of them until these times are known, and where Config.AdmitAlways is set. Blocks of one page group are
// meant: others end their prefixes elsewhere.
//
// Where blocks in files are refused, now and then all are said to be worth it, so that a load tells whether that has changed.
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
	// A pool's blocks cost nothing here: what a job of them takes is the engine's steps, at whose ends it looks.
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
	// Whoever asks need not load them, so that the probe ends here, with the time that a load is expected to take.
	took := time.Duration(0)
	if rate := m.admission.Stats().FileRate; rate > 0 {
		took = time.Duration(float64(below) / rate * float64(time.Second))
	}
	m.admission.Probed(m.clock.Now(), took)
	return n
}

// Computed tells that the engine has computed the KV of so many tokens in that time. Few tokens, less than 256, are passed over.
func (m *Manager) Computed(tokens int64, took time.Duration) { m.admission.Computed(tokens, took) }

// loaded tells what a job that loads has taken; a worker loads as many bytes as the first, at the same time.
func (j *Job) loaded() {
	var memory, files int64
	for i := range j.held {
		if n := j.m.blockBytes(j.held[i].name.Group); j.held[i].slot != nil {
			memory += n
		} else {
			files += n
		}
	}
	if memory+files > 0 {
		j.m.admission.Loaded(memory, files, j.m.clock.Since(j.begun))
	}
}

func (m *Manager) blockBytes(group int) int64 {
	if group < 0 || group >= len(m.ranks[0].Formats) {
		return 0
	}
	return m.ranks[0].Formats[group].Layout.ImageBytes()
}
