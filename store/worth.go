package store

import (
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/admission"
)

// probeBlocks is the number of refused blocks that a probe prefetches.
const probeBlocks = 8

// Worth returns how many of a lease's blocks, from the first, are worth loading: the number that
// saves the most time compared with computing them, by the recent times of loads, prefetches and
// computing (Store.Computed). tokens is the number of tokens that all blocks of the lease save.
// Until both times are known, and under Config.AdmitAlways, it is all blocks. Worth does not block.
//
// If blocks in the tiers below are refused, Worth prefetches a few of them now and then, to measure
// whether they have become faster.
func (s *Store) Worth(l *Lease, tokens int64) int {
	if s.cfg.AdmitAlways {
		return l.Len()
	}
	keys := l.Keys()
	source := func(i int) admission.Source {
		if s.pipeline.Transient || l.Below(i) {
			return admission.Files
		}
		return admission.Memory
	}
	n := s.admission.Worth(len(keys), tokens, source, func(i int) int64 { return s.cfg.Formats.ImageBytes(keys[i]) })
	for i := n; i < len(keys); i++ {
		if source(i) == admission.Files {
			if s.admission.Probe(s.cfg.Clock.Now()) && !s.probe(keys[i:min(len(keys), i+probeBlocks)]) {
				return len(keys)
			}
			break
		}
	}
	return n
}

// probe starts a prefetch whose time is measured. Without a cache there is nothing to prefetch to:
// it returns false, and a load must measure instead.
func (s *Store) probe(keys []block.Key) bool {
	if !s.pipeline.Transient {
		if _, err := s.prefetch(s.pipeline.NoWait(), keys, true); err == nil {
			return true
		}
	}
	s.admission.Probed(s.cfg.Clock.Now(), 0) // also if the store is busy or closing
	return !s.pipeline.Transient
}

// Computed reports the time in which the host program has computed the KV of a number of tokens.
// Prefixes of less than 256 tokens are ignored.
func (s *Store) Computed(tokens int64, took time.Duration) { s.admission.Computed(tokens, took) }
