package store

import (
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/admission"
)

// probeBlocks is how many refused blocks are brought to the cache now and then, to see whether that is still slow.
const probeBlocks = 8

// Worth returns how many of a lease's blocks, from the first on, are worth loading: as many as save the most time against computing
// them again, by what loads and prefetches have taken lately, and computing (Store.Computed). tokens is how many tokens all of the
// lease's blocks save. It is all of them until both times are known, and under Config.AdmitAlways. Does not wait.
//
// Where blocks in the tiers below are refused, a few of them are prefetched now and then, so that it is seen when that has become
// faster.
func (s *Store) Worth(l *Lease, tokens int64) int {
	if s.cfg.AdmitAlways {
		return l.Len()
	}
	keys := l.Keys()
	source := func(i int) admission.Source {
		if s.passing || l.Below(i) {
			return admission.Files
		}
		return admission.Memory
	}
	n := s.admission.Worth(len(keys), tokens, source, func(i int) int64 { return s.formats.ImageBytes(keys[i]) })
	for i := n; i < len(keys); i++ {
		if source(i) == admission.Files {
			if s.admission.Probe(s.clock.Now()) && !s.probe(keys[i:min(len(keys), i+probeBlocks)]) {
				return len(keys)
			}
			break
		}
	}
	return n
}

// probe begins a prefetch whose time is measured. Where there is no cache to prefetch to it says false: then a load has to tell.
func (s *Store) probe(keys []block.Key) bool {
	if !s.passing {
		if _, err := s.prefetch(s.now, keys, true); err == nil {
			return true
		}
	}
	s.admission.Probed(s.clock.Now(), 0) // it may also be closing, or busy
	return !s.passing
}

// Computed tells that the host program has computed the KV of so many tokens in that time. Prefixes of few tokens, less than 256, are
// passed over.
func (s *Store) Computed(tokens int64, took time.Duration) { s.admission.Computed(tokens, took) }
