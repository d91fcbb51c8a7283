package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Stats counts what a store did since it was opened. Bytes over Busy is a path's rate.
type Stats struct {
	Tiers []TierStats // in the pipeline's order

	Loads, Dumps, Prefetches int64 // tasks begun
	Running                  int   // tasks not yet resolved
	LoadErrors, DumpErrors   int64 // blocks that failed
	Misses                   int64 // blocks that leases, and loads without one, found in no tier
	Dumped, Skipped          int64 // blocks that dumps stored; blocks that they found stored
	Prefetched               int64 // blocks brought into the cache ahead of need
	Backlog                  int   // writes to the tiers below that wait for a writer

	// Blocks that loads brought to pages, by who verified them: the bytes' copy on its way, or the CPU in the slot (or when
	// the block was read from a tier below). The rest was trusted, under VerifyFill.
	// Under VerifyAlways both count where the copy summed.
	VerifiedOnWay, VerifiedByCPU int64

	Mismatches      int64 // blocks that failed their check, or could not be read when they were to be written, in any tier
	BadCopies       int64 // copies to pages that failed their check although the block was right where it came from
	Refills         int64 // copies in slots that failed their check and were read anew from below
	Retries         int64 // times a block or a batch was tried again
	Fallbacks       int64 // times a tier failed, other than by a miss or a failed check, and the store went on without it
	TierErrors      int64 // tier operations that failed, other than by a miss or a failed check
	DurableFailures int64 // writes of blocks to a tier below that failed
	Quarantined     int64 // slots that went to quarantine because hardware might still have touched them
	BatchesFailed   int64 // that a stream failed, but for canceled ones
	StreamsReopened int64
	LoadsExpired    int64 // loads that streams of the host program waited for longer than Config.WaitMax: these went on without

	Leases        int64 // leases given
	LeasesLive    int
	LeasesExpired int64 // leases that ended by their deadline
	LeasesCut     int64 // leases that ended early because leases may hold no more slots

	// Admission is what Worth has decided, and the times that it goes by.
	Admission admission.Stats

	LoadPaths, DumpPaths []PathStats

	// How long tasks took since they had their turn, however they ended: loads until they resolved, dumps until their pages were
	// free and until they were durable. And calls of LeasePrefix and Lookup.
	LoadTimes, FreeTimes, DurableTimes, LeaseTimes, LookupTimes Latency
	// How long tasks waited for their turn among Config.Tasks, and blocks for one of Config.Readers, Config.Checkers or
	// Config.Writers.
	TurnWaits, ReadWaits, CheckWaits, WriteWaits Latency

	// PathsGivenUp is how often a stream gave up a path since the device refused what it needs or a NIC failed, and GivenUp
	// why, the latest.
	PathsGivenUp int64
	GivenUp      error
}

// TierStats is a tier's part of Stats.
type TierStats struct {
	Name string
	Hits int64 // blocks that loads read from this tier, each once
	Tier tier.Stats
}

// PathStats counts what went over one path in one direction.
type PathStats struct {
	Path    stream.Path
	Reason  string // of the latest batch: why this path
	Batches int64
	Pieces  int64
	Bytes   int64
	// Summed is how many of the bytes were summed on their way.
	Summed int64
	// Busy is the time during which the stream was copying over this path; batches that overlap count once.
	Busy time.Duration
	// Predicted is what the planner expected Busy to be. Zero where nobody planned.
	Predicted time.Duration
	// Copied is how long its batches took from the first byte handed to the hardware to the last that landed, and Queued how long
	// the stream had them before that, the caller's time in Submit included.
	Copied, Queued Latency
}

// Stats returns the figures of now. Safe for concurrent use; the figures are not of one instant.
func (s *Store) Stats() Stats {
	c, x := &s.count, s.index.Stats()
	st := Stats{
		Loads: c.loads.Load(), Dumps: c.dumps.Load(), Prefetches: c.prefetches.Load(), Running: len(s.turns) + len(s.dumping),
		Misses:     x.Missed + c.misses.Load(),
		LoadErrors: c.loadErrors.Load(), DumpErrors: c.dumpErrors.Load(),
		Dumped: c.dumped.Load(), Skipped: c.skipped.Load(), Prefetched: c.prefetched.Load(), Backlog: s.writers.backlog(),
		VerifiedOnWay: c.verifiedOnWay.Load(), VerifiedByCPU: c.verifiedByCPU.Load(),
		Mismatches: c.corrupt.Load(), BadCopies: c.badCopies.Load(), Refills: c.refills.Load(), Retries: c.retries.Load(), Fallbacks: x.Fallbacks,
		TierErrors: c.tierErrors.Load() + x.Fallbacks, DurableFailures: c.durableFailures.Load(), Quarantined: c.quarantined.Load(),
		BatchesFailed: c.batchesFailed.Load(), StreamsReopened: c.reopened.Load(), LoadsExpired: c.expired.Load(),
		Leases: x.Leases, LeasesLive: x.Live, LeasesExpired: x.Expired, LeasesCut: x.Cut,
		Admission: s.admission.Stats(),
		LoadPaths: c.load.paths(), DumpPaths: c.dump.paths(),
		LoadTimes: c.loaded.read(), FreeTimes: c.freed.read(), DurableTimes: c.durable.read(),
		LeaseTimes: c.leased.read(), LookupTimes: c.lookedUp.read(),
		TurnWaits: c.turns.read(), ReadWaits: s.readers.waits.read(), CheckWaits: s.checks.waits.read(), WriteWaits: s.writers.waits.read(),
	}
	for _, t := range []*tally{&c.load, &c.dump} {
		n, why := t.given()
		if st.PathsGivenUp += n; why != nil {
			st.GivenUp = why
		}
	}
	for i, t := range s.tiers {
		ts := TierStats{Name: t.Name(), Hits: c.hits[i].Load()}
		if statter, ok := t.(tier.Statter); ok {
			ts.Tier = statter.Stats()
			st.Mismatches += ts.Tier.Replaced
		}
		st.Tiers = append(st.Tiers, ts)
	}
	return st
}

// counters is what Stats reads.
type counters struct {
	loads, dumps, prefetches     atomic.Int64
	loadErrors, dumpErrors       atomic.Int64
	misses                       atomic.Int64 // of loads without a lease
	dumped, skipped, prefetched  atomic.Int64
	corrupt, refills, retries    atomic.Int64
	badCopies                    atomic.Int64
	verifiedOnWay, verifiedByCPU atomic.Int64
	durableFailures, quarantined atomic.Int64
	tierErrors, reopened         atomic.Int64
	batchesFailed                atomic.Int64
	expired                      atomic.Int64   // loads
	hits                         []atomic.Int64 // by tier
	loaded, freed, durable       latency
	leased, lookedUp, turns      latency
	load, dump                   tally
}

func (c *counters) init(tiers int) { c.hits = make([]atomic.Int64, tiers) }

// tally counts completions by path.
type tally struct {
	mu   sync.Mutex
	by   []*pathTally // few, in order of appearance
	last time.Time    // when the latest completion so far had finished
	// How often a path was given up, and why, the latest.
	givenUp int64
	why     error
}

type pathTally struct {
	PathStats
	copied, queued latency
}

// add counts a batch that was submitted then.
func (t *tally) add(c stream.Completion, submitted time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.GivenUp != nil {
		t.givenUp, t.why = t.givenUp+1, c.GivenUp
	}
	if c.Path == stream.PathNone {
		return
	}
	var p *pathTally
	for _, of := range t.by {
		if of.Path == c.Path {
			p = of
		}
	}
	if p == nil {
		p = &pathTally{PathStats: PathStats{Path: c.Path}}
		t.by = append(t.by, p)
	}
	p.copied.observe(c.Finished.Sub(c.Started))
	p.queued.observe(c.Started.Sub(submitted))
	p.Reason = c.Reason
	p.Batches++
	p.Pieces += int64(c.Pieces)
	p.Bytes += c.Bytes
	p.Predicted += c.Predicted
	if c.Summed {
		p.Summed += c.Bytes
	}
	// Streams work in order: what lies before the end of the batch before was counted with that.
	from := c.Started
	if from.Before(t.last) {
		from = t.last
	}
	if d := c.Finished.Sub(from); d > 0 {
		p.Busy += d
	}
	if c.Finished.After(t.last) {
		t.last = c.Finished
	}
}

// given returns how often a path was given up, and why, the latest.
func (t *tally) given() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.givenUp, t.why
}

func (t *tally) paths() []PathStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []PathStats
	for _, of := range t.by {
		p := of.PathStats
		p.Copied, p.Queued = of.copied.read(), of.queued.read()
		out = append(out, p)
	}
	return out
}
