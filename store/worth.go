package store

import (
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/admission"
)

// probeBlocks is the number of blocks that a probe prefetches.
const probeBlocks = 8

// refusedMost is the number of refused blocks that Store.Why knows.
const refusedMost = 1 << 14

// Worth returns the number of a lease's blocks, from the first, whose loading saves the most time
// compared with computing them. It uses the recent times of loads, prefetches, computing
// (Store.Computed) and the program (Store.Delayed). tokens is the number of tokens that all blocks
// of the lease save, and rest the number that the program computes in any case at the same time:
// the other tokens of the request, and those of other requests. While these times are unknown, and under Config.AdmitAlways, Worth returns all
// blocks. Worth does not block.
//
// If Worth refuses blocks, it occasionally measures whether loading them has become faster: it
// prefetches a few of those in the tiers below, or returns all blocks.
func (s *Store) Worth(l *Lease, tokens, rest int64) int {
	if s.cfg.AdmitAlways {
		return l.Len()
	}
	keys := l.Keys()
	p := admission.Prefix{
		Blocks: len(keys), Tokens: tokens, Rest: rest,
		Source: func(i int) admission.Source {
			at := int8(l.TierIndex(i))
			if s.pipeline.Transient {
				at = max(at, 1)
			}
			return s.pipeline.Source(at)
		},
		Bytes: func(i int) int64 { return s.cfg.Formats.ImageBytes(keys[i]) },
	}
	n := s.admission.Worth(p)
	if n == len(keys) {
		return n
	}
	if n = s.probeRefused(&p, keys, n); n < len(keys) {
		s.refused.Add(s.cfg.Clock.Now(), keys[n:min(len(keys), n+refusedMost)]...)
	}
	return n
}

// probeRefused measures occasionally whether loading the blocks from n on has become faster. It
// returns the number of blocks to load.
func (s *Store) probeRefused(p *admission.Prefix, keys []block.Key, n int) int {
	// Probe the first blocks that are not in memory, else those in memory.
	source, first := admission.Memory, n
	for i := n; i < len(keys) && source == admission.Memory; i++ {
		source, first = p.Source(i), i
	}
	switch {
	case !s.admission.Probe(source, s.cfg.Clock.Now()):
		return n
	case source != admission.Memory && !s.pipeline.Transient:
		end := first
		for end < min(len(keys), first+probeBlocks) && p.Source(end) == source {
			end++
		}
		s.probe(source, keys[first:end])
		return n
	}
	s.admission.Probed(source, s.cfg.Clock.Now(), s.admission.Cost(*p))
	return len(keys)
}

// probe prefetches refused blocks, to measure the time of loading them.
func (s *Store) probe(source admission.Source, keys []block.Key) {
	if _, err := s.prefetch(s.pipeline.NoWait(), keys, source); err != nil {
		s.admission.Probed(source, s.cfg.Clock.Now(), 0) // the store is busy or closing
	}
}

// Computed reports the time in which the host program has computed the KV of a number of tokens.
// Times of fewer than 256 tokens measure the fixed time of a step.
func (s *Store) Computed(tokens int64, took time.Duration) { s.admission.Computed(tokens, took) }

// Delayed reports the time from the decision to load blocks in the cache to their use, without the
// duration of the load (LoadTask.Elapsed).
func (s *Store) Delayed(delay time.Duration) { s.admission.Delayed(admission.Memory, delay) }
