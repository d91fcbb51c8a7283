package store

import (
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/tier"
)

// Stats counts the work of a store since it was opened. The rate of a path is its bytes divided by
// Busy.
type Stats struct {
	Tiers []TierStats // in the order of the pipeline

	Loads, Dumps, Prefetches int64 // tasks started
	Running                  int   // tasks that have not ended
	LoadErrors, DumpErrors   int64 // blocks that failed
	Misses                   int64 // blocks that leases, or loads without a lease, found in no tier
	Dumped, Skipped          int64 // blocks that dumps stored; blocks that were already stored
	Prefetched               int64 // blocks that prefetches read into the cache
	Backlog                  int   // writes to the tiers below that wait for a writer

	// VerifiedOnWay counts loaded blocks that were verified by the sums of their copy.
	// VerifiedByCPU counts those that the CPU verified, in the slot or when the block was read from
	// a tier below. Under VerifyFill some blocks are trusted and not counted. Under VerifyAlways a
	// block may be counted twice.
	VerifiedOnWay, VerifiedByCPU int64

	// Mismatches is the number of blocks in any tier that failed their check, or were unreadable
	// when they were written.
	Mismatches int64
	BadCopies  int64 // copies to pages that failed their check although their slot was correct
	Refills    int64 // corrupt slots of blocks that were read again from a tier below
	Retries    int64 // retries of a block or a batch
	// Fallbacks is the number of failures of a tier, except misses and failed checks, after which
	// the store continued.
	Fallbacks       int64
	TierErrors      int64 // failed operations of a tier, other than misses and failed checks
	Quarantined     int64 // slots put in quarantine because hardware might still access them
	BatchesFailed   int64 // batches that a stream failed, except canceled ones
	StreamsReopened int64
	// Direct is the number of blocks that loads read to device memory without host memory, and
	// DirectDumped that of blocks that dumps wrote in the same way. DirectFailed is the number of
	// failed attempts of both.
	Direct, DirectDumped, DirectFailed int64
	// LoadsExpired is the number of loads for which streams of the host program waited longer than
	// Config.WaitMax.
	LoadsExpired int64

	Leases        int64 // leases created
	LeasesLive    int
	LeasesExpired int64 // leases that ended by their deadline
	LeasesCut     int64 // leases shortened because leases may hold no more slots

	// Admission holds the decisions of Worth and the measured times.
	Admission admission.Stats

	LoadPaths, DumpPaths []PathStats

	// Durations of tasks, including failed ones: LoadTimes until the load has ended, FreeTimes
	// until the pages of a dump are free, DurableTimes until the dump is durable. LeaseTimes and
	// LookupTimes are durations of LeasePrefix and Lookup.
	LoadTimes, FreeTimes, DurableTimes, LeaseTimes, LookupTimes Latency
	// TaskWaits are the waits of tasks because of Config.Tasks. The others are the waits of blocks
	// for one of Config.Readers, Config.Checkers or Config.Writers.
	TaskWaits, ReadWaits, CheckWaits, WriteWaits Latency

	// PathsGivenUp is the number of times that a stream stopped using a path because the device
	// refused a resource or a NIC failed. GivenUp is the latest cause.
	PathsGivenUp int64
	GivenUp      error
}

// TierStats holds the statistics of one tier.
type TierStats struct {
	Name string
	Hits int64 // blocks that loads read from this tier
	// LeftOut is the number of blocks that dumps could not store in this tier (DumpTask.LeftOut).
	LeftOut int64
	Tier    tier.Stats
}

// Stats returns the current statistics. Concurrent operations may be included partially.
func (s *Store) Stats() Stats {
	c, x := &s.pipeline.Count, s.pipeline.Index.Stats()
	st := Stats{
		Loads: c.Loads.Load(), Dumps: c.Dumps.Load(), Prefetches: c.Prefetches.Load(), Running: s.sched.Running(),
		Misses:     x.Missed + c.Misses.Load(),
		LoadErrors: c.LoadErrors.Load(), DumpErrors: c.DumpErrors.Load(),
		Dumped: c.Dumped.Load(), Skipped: c.Skipped.Load(), Prefetched: c.Prefetched.Load(), Backlog: s.dumper.Backlog(),
		VerifiedOnWay: c.VerifiedByCopy.Load(), VerifiedByCPU: c.VerifiedByCPU.Load(),
		Mismatches: c.Corrupt.Load(), BadCopies: c.BadCopies.Load(), Refills: c.Refills.Load(), Retries: c.Retries.Load(),
		Fallbacks: x.Fallbacks, TierErrors: c.TierErrors.Load() + x.Fallbacks,
		Quarantined:   c.Quarantined.Load(),
		BatchesFailed: c.BatchesFailed.Load(), StreamsReopened: c.Reopened.Load(), LoadsExpired: c.Expired.Load(),
		Direct: c.Direct.Load(), DirectDumped: c.DirectDumped.Load(), DirectFailed: c.DirectFailed.Load(),
		Leases: x.Leases, LeasesLive: x.Live, LeasesExpired: x.Expired, LeasesCut: x.Cut,
		Admission: s.admission.Stats(),
		LoadPaths: c.LoadPaths.Read(), DumpPaths: c.DumpPaths.Read(),
		LoadTimes: c.LoadTimes.Read(), FreeTimes: c.FreeTimes.Read(), DurableTimes: c.DurableTimes.Read(),
		LeaseTimes: c.LeaseTimes.Read(), LookupTimes: c.LookupTimes.Read(),
		TaskWaits: s.sched.Waits(), ReadWaits: s.readers.Waits(), CheckWaits: s.checks.Waits(), WriteWaits: s.dumper.WriteWaits(),
	}
	for _, paths := range []*stat.Paths{&c.LoadPaths, &c.DumpPaths} {
		n, cause := paths.GivenUp()
		if st.PathsGivenUp += n; cause != nil {
			st.GivenUp = cause
		}
	}
	for i, t := range append([]tier.Tier{s.cfg.Cache}, s.cfg.Next...) {
		ts := TierStats{Name: t.Name(), Hits: c.Hits[i].Load(), LeftOut: c.LeftOut[i].Load()}
		if statter, ok := t.(tier.Statter); ok {
			ts.Tier = statter.Stats()
			st.Mismatches += ts.Tier.Replaced
		}
		st.Tiers = append(st.Tiers, ts)
	}
	return st
}
