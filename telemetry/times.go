package telemetry

import "github.com/kvlane/kvlane/store"

// storeTimes are the histograms of a store. The histograms by path have one time series for each
// used path and direction.
var storeTimes = []timesFamily[*store.Stats]{
	storeHistogram("kvlane_store_load_seconds", "Duration of a load, from its start until every block is verified on its page or has failed.", func(s *store.Stats) *store.Latency { return &s.LoadTimes }),
	storeHistogram("kvlane_store_dump_free_seconds", "Duration of a dump, from its start until its pages may be written again.", func(s *store.Stats) *store.Latency { return &s.FreeTimes }),
	storeHistogram("kvlane_store_dump_durable_seconds", "Duration of a dump, from its start until every block is in the tiers below or has failed.", func(s *store.Stats) *store.Latency { return &s.DurableTimes }),
	storeHistogram("kvlane_store_lease_seconds", "Duration of a call that finds and pins the longest stored prefix of some keys.", func(s *store.Stats) *store.Latency { return &s.LeaseTimes }),
	storeHistogram("kvlane_store_lookup_seconds", "Duration of a call that looks up keys.", func(s *store.Stats) *store.Latency { return &s.LookupTimes }),
	{
		Metric{"kvlane_store_queue_seconds", "seconds", Histogram, "Time spent waiting: tasks to start, and blocks to be read from a tier, verified or written.", []string{labelQueue}},
		func(s *store.Stats, out emitTimes) {
			out(&s.TaskWaits, "turn")
			out(&s.ReadWaits, "read")
			out(&s.CheckWaits, "verify")
			out(&s.WriteWaits, "write")
		},
	},
	pathHistogram("kvlane_copy_seconds", "Duration of a batch, from the submission of its first byte to the hardware until the last byte is copied.", func(p *store.PathStats) *store.Latency { return &p.Copied }),
	pathHistogram("kvlane_copy_queue_seconds", "Time that a batch waited, from its submission until the submission of its first byte to the hardware.", func(p *store.PathStats) *store.Latency { return &p.Queued }),
}

func storeHistogram(name, help string, read func(*store.Stats) *store.Latency) timesFamily[*store.Stats] {
	return timesFamily[*store.Stats]{Metric{Name: name, Unit: "seconds", Type: Histogram, Help: help}, func(s *store.Stats, out emitTimes) { out(read(s)) }}
}

func pathHistogram(name, help string, read func(*store.PathStats) *store.Latency) timesFamily[*store.Stats] {
	return timesFamily[*store.Stats]{
		Metric{name, "seconds", Histogram, help, []string{labelPath, labelDirection}},
		func(s *store.Stats, out emitTimes) {
			eachPath(s, func(p *store.PathStats, direction string) { out(read(p), p.Path.String(), direction) })
		},
	}
}

// eachPath calls yield for each path that a store's batches have used, with its direction.
func eachPath(s *store.Stats, yield func(p *store.PathStats, direction string)) {
	for i := range s.LoadPaths {
		yield(&s.LoadPaths[i], directionLoad)
	}
	for i := range s.DumpPaths {
		yield(&s.DumpPaths[i], directionDump)
	}
}
