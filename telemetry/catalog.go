package telemetry

import (
	"time"

	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
)

// Names of labels.
const (
	labelTier      = "tier"
	labelPath      = "path"
	labelDirection = "direction"
	labelQueue     = "queue"
)

// Directions of copies between store and device.
const (
	directionLoad = "load"
	directionDump = "dump"
)

// storeFamilies are the metrics of a store.
var storeFamilies = []family[*store.Stats]{
	storeCounter("kvlane_store_loads_total", "tasks", "Load tasks started.", func(s *store.Stats) int64 { return s.Loads }),
	storeCounter("kvlane_store_dumps_total", "tasks", "Dump tasks started.", func(s *store.Stats) int64 { return s.Dumps }),
	storeCounter("kvlane_store_prefetches_total", "tasks", "Prefetch tasks started.", func(s *store.Stats) int64 { return s.Prefetches }),
	storeGauge("kvlane_store_tasks_running", "tasks", "Tasks started and not yet resolved.", func(s *store.Stats) int64 { return int64(s.Running) }),
	{
		Metric{"kvlane_store_hits_total", "blocks", Counter, "Blocks that loads were served from this tier, each once.", []string{labelTier}},
		func(s *store.Stats, out emit) {
			for i := range s.Tiers {
				out(float64(s.Tiers[i].Hits), s.Tiers[i].Name)
			}
		},
	},
	{
		Metric{"kvlane_store_left_out_total", "blocks", Counter, "Dumped blocks that this tier did not store: it was full, failed or was gone.", []string{labelTier}},
		func(s *store.Stats, out emit) {
			for i := range s.Tiers {
				out(float64(s.Tiers[i].LeftOut), s.Tiers[i].Name)
			}
		},
	},
	storeCounter("kvlane_store_misses_total", "blocks", "Blocks requested by leases, or by loads without one, and found in no tier.", func(s *store.Stats) int64 { return s.Misses }),
	storeCounter("kvlane_store_load_errors_total", "blocks", "Blocks that a load did not deliver.", func(s *store.Stats) int64 { return s.LoadErrors }),
	storeCounter("kvlane_store_dump_errors_total", "blocks", "Blocks that a dump did not store.", func(s *store.Stats) int64 { return s.DumpErrors }),
	storeCounter("kvlane_store_dumped_blocks_total", "blocks", "Blocks that dumps stored. A block whose dump failed is not counted, even if memory has it.", func(s *store.Stats) int64 { return s.Dumped }),
	storeCounter("kvlane_store_skipped_blocks_total", "blocks", "Blocks that dumps found stored already.", func(s *store.Stats) int64 { return s.Skipped }),
	storeCounter("kvlane_store_prefetched_blocks_total", "blocks", "Blocks prefetched into the cache.", func(s *store.Stats) int64 { return s.Prefetched }),
	storeGauge("kvlane_store_write_backlog", "blocks", "Blocks waiting to be written to a lower tier.", func(s *store.Stats) int64 { return int64(s.Backlog) }),
	storeCounter("kvlane_store_corrupt_total", "blocks", "Blocks whose bytes failed their check, in any tier.", func(s *store.Stats) int64 { return s.Mismatches }),
	storeCounter("kvlane_store_bad_copies_total", "blocks", "Copies to pages that failed their check although the source block was correct.", func(s *store.Stats) int64 { return s.BadCopies }),
	{
		Metric{"kvlane_store_verified_blocks_total", "blocks", Counter, "Blocks loaded to pages, by the verifier: the copy itself, or a CPU.", []string{"by"}},
		func(s *store.Stats, out emit) {
			out(float64(s.VerifiedOnWay), "copy")
			out(float64(s.VerifiedByCPU), "cpu")
		},
	},
	storeCounter("kvlane_store_refills_total", "blocks", "Corrupt cached blocks that were read again from a lower tier.", func(s *store.Stats) int64 { return s.Refills }),
	storeCounter("kvlane_store_retries_total", "tries", "Retries of a block or a batch.", func(s *store.Stats) int64 { return s.Retries }),
	storeCounter("kvlane_store_fallbacks_total", "blocks", "Times a tier failed, other than by a miss, and the store continued without it.", func(s *store.Stats) int64 { return s.Fallbacks }),
	storeCounter("kvlane_store_direct_blocks_total", "blocks", "Blocks that loads read to device memory by cuFile.", func(s *store.Stats) int64 { return s.Direct }),
	storeCounter("kvlane_store_direct_failures_total", "blocks", "Blocks whose read by cuFile failed.", func(s *store.Stats) int64 { return s.DirectFailed }),
	storeCounter("kvlane_store_tier_errors_total", "operations", "Tier operations that failed, other than by a miss or a failed check.", func(s *store.Stats) int64 { return s.TierErrors }),
	storeCounter("kvlane_store_quarantined_total", "slots", "Slots moved to quarantine because hardware might still access them.", func(s *store.Stats) int64 { return s.Quarantined }),
	storeCounter("kvlane_copy_paths_given_up_total", "paths", "Times a stream abandoned a path because the device refused a resource, or a NIC failed.", func(s *store.Stats) int64 { return s.PathsGivenUp }),
	storeCounter("kvlane_store_loads_expired_total", "loads", "Loads that expired because a stream of the host program waited for too long.", func(s *store.Stats) int64 { return s.LoadsExpired }),
	storeCounter("kvlane_store_stream_reopens_total", "streams", "Copy streams reopened after one broke.", func(s *store.Stats) int64 { return s.StreamsReopened }),
	storeCounter("kvlane_store_leases_total", "leases", "Leases granted.", func(s *store.Stats) int64 { return s.Leases }),
	storeGauge("kvlane_store_leases_live", "leases", "Leases held now.", func(s *store.Stats) int64 { return int64(s.LeasesLive) }),
	storeCounter("kvlane_store_leases_expired_total", "leases", "Leases that ended by their deadline.", func(s *store.Stats) int64 { return s.LeasesExpired }),
	storeCounter("kvlane_store_leases_cut_total", "leases", "Leases cut short at the limit of leased slots.", func(s *store.Stats) int64 { return s.LeasesCut }),
	storeCounter("kvlane_store_admission_cut_total", "leases", "Prefixes that were not worth loading to their end.", func(s *store.Stats) int64 { return s.Admission.Cut }),
	storeCounter("kvlane_store_admission_refused_total", "blocks", "Blocks that were faster to compute than to load.", func(s *store.Stats) int64 { return s.Admission.BlocksRefused }),
	storeCounter("kvlane_store_admission_probes_total", "operations", "Prefetches and loads that check whether refused blocks are faster to load now.", func(s *store.Stats) int64 { return s.Admission.Probes }),
	pathFamily("kvlane_copy_bytes_total", "bytes", "Bytes copied between store and device.", func(p *store.PathStats) float64 { return float64(p.Bytes) }),
	pathFamily("kvlane_copy_batches_total", "batches", "Batches copied between store and device.", func(p *store.PathStats) float64 { return float64(p.Batches) }),
	pathFamily("kvlane_copy_pieces_total", "pieces", "Single copies in those batches.", func(p *store.PathStats) float64 { return float64(p.Pieces) }),
	pathFamily("kvlane_copy_summed_bytes_total", "bytes", "Bytes whose checksum was computed by the copy.", func(p *store.PathStats) float64 { return float64(p.Summed) }),
	pathFamily("kvlane_copy_busy_seconds_total", "seconds", "Time in which a stream was copying over this path.", func(p *store.PathStats) float64 { return p.Busy.Seconds() }),
	pathFamily("kvlane_copy_predicted_seconds_total", "seconds", "The planner's prediction of that time.", func(p *store.PathStats) float64 { return p.Predicted.Seconds() }),
}

func storeCounter(name, unit, help string, read func(*store.Stats) int64) family[*store.Stats] {
	return family[*store.Stats]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *store.Stats, out emit) { out(float64(read(s))) }}
}

func storeGauge(name, unit, help string, read func(*store.Stats) int64) family[*store.Stats] {
	f := storeCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}

func pathFamily(name, unit, help string, read func(*store.PathStats) float64) family[*store.Stats] {
	return family[*store.Stats]{
		Metric{name, unit, Counter, help, []string{labelPath, labelDirection}},
		func(s *store.Stats, out emit) {
			eachPath(s, func(p *store.PathStats, direction string) { out(read(p), p.Path.String(), direction) })
		},
	}
}

// tierFamilies are the metrics of each tier.
var tierFamilies = []family[*namedTier]{
	tierGauge("kvlane_tier_blocks", "blocks", "Blocks held.", func(s *tier.Stats) int64 { return s.Blocks }),
	tierGauge("kvlane_tier_bytes", "bytes", "Bytes held.", func(s *tier.Stats) int64 { return s.Bytes }),
	tierGauge("kvlane_tier_capacity_bytes", "bytes", "Limit of the bytes held; 0 is no limit.", func(s *tier.Stats) int64 { return s.CapacityBytes }),
	tierCounter("kvlane_tier_puts_total", "blocks", "Blocks stored.", func(s *tier.Stats) int64 { return s.Puts }),
	tierCounter("kvlane_tier_evictions_total", "blocks", "Blocks evicted to make space.", func(s *tier.Stats) int64 { return s.Evictions }),
	tierCounter("kvlane_tier_corrupt_total", "blocks", "Blocks found corrupt and moved to quarantine.", func(s *tier.Stats) int64 { return s.Corrupt }),
	tierCounter("kvlane_tier_errors_total", "operations", "Operations that failed for another reason than a miss.", func(s *tier.Stats) int64 { return s.Errors }),
	tierCounter("kvlane_tier_read_bytes_total", "bytes", "Bytes read from the tier.", func(s *tier.Stats) int64 { return s.ReadBytes }),
	tierCounter("kvlane_tier_written_bytes_total", "bytes", "Bytes written to the tier.", func(s *tier.Stats) int64 { return s.WrittenBytes }),
	tierGauge("kvlane_tier_pinned_bytes", "bytes", "Bytes of the blocks that `kvlane store pin` keeps.", func(s *tier.Stats) int64 { return s.PinnedBytes }),
	tierGauge("kvlane_tier_retained", "pins", "Pins held on blocks.", func(s *tier.Stats) int64 { return s.Retained }),
	tierGauge("kvlane_tier_quarantined", "blocks", "Files or slots in quarantine.", func(s *tier.Stats) int64 { return s.Quarantined }),
	tierCounter("kvlane_tier_replaced_total", "blocks", "Stored blocks found damaged or unreadable when they were stored again, and rewritten.", func(s *tier.Stats) int64 { return s.Replaced }),
	tierCounter("kvlane_tier_newer_total", "blocks", "Blocks of another format version, treated as misses and kept.", func(s *tier.Stats) int64 { return s.Newer }),
	tierGauge("kvlane_tier_others_bytes", "bytes", "Bytes of the capacity that other identities count for: held, or needed in addition by their records.", func(s *tier.Stats) int64 { return s.OthersBytes }),
	tierCounter("kvlane_tier_yielded_total", "blocks", "Evictions while other identities had blocks and all together exceeded the capacity.", func(s *tier.Stats) int64 { return s.Yielded }),
	tierCounter("kvlane_tier_reclaimed_total", "blocks", "Blocks removed of other identities that no process used.", func(s *tier.Stats) int64 { return s.Reclaimed }),
	tierGauge("kvlane_tier_waiting", "writes", "Writes waiting for space.", func(s *tier.Stats) int64 { return s.Waiting }),
	tierGauge("kvlane_tier_stuck", "blocks", "Blocks that could not be removed when space was last made.", func(s *tier.Stats) int64 { return s.Stuck }),
	tierGauge("kvlane_tier_paused", "1", "1 while writing is paused for lack of space, or a full disk keeps the tier below its capacity.", func(s *tier.Stats) int64 { return flag(s.Paused != nil) }),
	tierGauge("kvlane_tier_failing", "1", "1 while counting blocks or making space fails.", func(s *tier.Stats) int64 { return flag(s.Failure != nil) }),
	tierCounter("kvlane_tier_swept_total", "files", "Temporary files removed when the tier was opened.", func(s *tier.Stats) int64 { return s.Swept }),
}

// managerFamilies are the metrics of a manager.
var managerFamilies = []family[*manager.Stats]{
	managerGauge("kvlane_manager_blocks", "blocks", "Blocks in the pools of the workers.", func(s *manager.Stats) int64 { return s.Blocks }),
	managerGauge("kvlane_manager_jobs", "jobs", "Jobs of the workers that have not ended.", func(s *manager.Stats) int64 { return int64(s.Jobs) }),
	managerCounter("kvlane_manager_pool_loads_total", "blocks", "Blocks loaded from the workers' pools.", func(s *manager.Stats) int64 { return s.FromPool }),
	managerCounter("kvlane_manager_file_loads_total", "blocks", "Blocks loaded from files or block servers.", func(s *manager.Stats) int64 { return s.FromFiles }),
	managerCounter("kvlane_manager_direct_loads_total", "blocks", "Blocks loaded from files by jobs that put none into the workers' pools.", func(s *manager.Stats) int64 { return s.Direct }),
	managerCounter("kvlane_manager_fallbacks_total", "blocks", "Blocks of such jobs that a worker had to read through its pool.", func(s *manager.Stats) int64 { return s.FellBack }),
	managerCounter("kvlane_manager_stored_total", "blocks", "Blocks stored.", func(s *manager.Stats) int64 { return s.Stored }),
	managerCounter("kvlane_manager_evicted_total", "blocks", "Blocks evicted from the workers' pools.", func(s *manager.Stats) int64 { return s.Evicted }),
	managerCounter("kvlane_manager_forgotten_total", "blocks", "Blocks that could not be stored or loaded, or were reported wrong.", func(s *manager.Stats) int64 { return s.Forgotten }),
	managerCounter("kvlane_manager_overdue_total", "blocks", "Blocks treated as misses because files or block servers did not answer in time.", func(s *manager.Stats) int64 { return s.Overdue }),
	managerCounter("kvlane_manager_unanchored_total", "blocks", "Accesses of blocks without an anchor, which block servers have by their own key.", func(s *manager.Stats) int64 { return s.Unanchored }),
	managerCounter("kvlane_manager_refused_total", "blocks", "Blocks not stored because all slots were in use.", func(s *manager.Stats) int64 { return s.Refused }),
}

func managerCounter(name, unit, help string, read func(*manager.Stats) int64) family[*manager.Stats] {
	return family[*manager.Stats]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *manager.Stats, out emit) { out(float64(read(s))) }}
}

func managerGauge(name, unit, help string, read func(*manager.Stats) int64) family[*manager.Stats] {
	f := managerCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func tierCounter(name, unit, help string, read func(*tier.Stats) int64) family[*namedTier] {
	return family[*namedTier]{Metric{name, unit, Counter, help, []string{labelTier}}, func(t *namedTier, out emit) { out(float64(read(&t.stats)), t.name) }}
}

func tierGauge(name, unit, help string, read func(*tier.Stats) int64) family[*namedTier] {
	f := tierCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}

// replayFamilies are the metrics of a replay.
var replayFamilies = []family[*Progress]{
	replayFamily("kvlane_replay_planned_requests", "requests", Gauge, "Requests of the replay in total.", func(p *Progress) float64 { return float64(p.total.Load()) }),
	replayFamily("kvlane_replay_requests_total", "requests", Counter, "Requests finished.", func(p *Progress) float64 { return float64(p.requests.Load()) }),
	replayFamily("kvlane_replay_block_accesses_total", "blocks", Counter, "Blocks accessed by those requests.", func(p *Progress) float64 { return float64(p.accesses.Load()) }),
	replayFamily("kvlane_replay_prefix_hits_total", "blocks", Counter, "Of these, blocks found as a prefix.", func(p *Progress) float64 { return float64(p.hits.Load()) }),
	replayFamily("kvlane_replay_verified_bytes_total", "bytes", Counter, "Bytes verified after loading.", func(p *Progress) float64 { return float64(p.verified.Load()) }),
	replayFamily("kvlane_replay_wrong_bytes_total", "bytes", Counter, "Of these, wrong bytes.", func(p *Progress) float64 { return float64(p.mismatched.Load()) }),
	replayFamily("kvlane_replay_seconds", "seconds", Gauge, "Time since the replay began.", func(p *Progress) float64 { return time.Since(p.start).Seconds() }),
}

func replayFamily(name, unit string, typ Type, help string, read func(*Progress) float64) family[*Progress] {
	return family[*Progress]{Metric{Name: name, Unit: unit, Type: typ, Help: help}, func(p *Progress, out emit) { out(read(p)) }}
}
