package telemetry

import "github.com/kvlane/kvlane/mem"

// SetArena sets the source of the arena metrics with label name. Nil removes it.
func (m *Metrics) SetArena(name string, stats func() mem.ArenaStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if stats == nil {
		delete(m.arenas, name)
		return
	}
	m.arenas[name] = stats
}

// namedArena are the statistics of an arena and its label.
type namedArena struct {
	name  string
	stats mem.ArenaStats
}

// arenaFamilies are the metrics of arenas.
var arenaFamilies = []family[*namedArena]{
	arenaFamily("kvlane_arena_regions", "regions", Gauge, "Regions of memory of the pool.", func(s *mem.ArenaStats) int64 { return int64(s.Regions) }),
	arenaFamily("kvlane_arena_bytes", "bytes", Gauge, "Memory of these regions.", func(s *mem.ArenaStats) int64 { return s.Bytes }),
	arenaFamily("kvlane_arena_blocks", "blocks", Gauge, "Blocks of these regions.", func(s *mem.ArenaStats) int64 { return int64(s.Blocks) }),
	arenaFamily("kvlane_arena_blocks_lent", "blocks", Gauge, "Blocks in use.", func(s *mem.ArenaStats) int64 { return int64(s.Lent) }),
	arenaFamily("kvlane_arena_blocks_high_water", "blocks", Gauge, "Most blocks in use at a time.", func(s *mem.ArenaStats) int64 { return int64(s.HighWater) }),
	arenaFamily("kvlane_arena_waiting", "requests", Gauge, "Requests that wait for a block.", func(s *mem.ArenaStats) int64 { return int64(s.Waiting) }),
	arenaFamily("kvlane_arena_waits_total", "requests", Counter, "Requests that had to wait for a block.", func(s *mem.ArenaStats) int64 { return s.Waits }),
	arenaFamily("kvlane_arena_grown_total", "regions", Counter, "Regions added.", func(s *mem.ArenaStats) int64 { return s.Grown }),
	arenaFamily("kvlane_arena_failed_total", "regions", Counter, "Regions that could not be allocated or registered.", func(s *mem.ArenaStats) int64 { return s.Failed }),
	arenaFamily("kvlane_arena_trimmed_total", "regions", Counter, "Regions freed because they were not used.", func(s *mem.ArenaStats) int64 { return s.Trimmed }),
	arenaFamily("kvlane_arena_kept", "regions", Gauge, "Regions that could not be freed.", func(s *mem.ArenaStats) int64 { return int64(s.Kept) }),
}

func arenaFamily(name, unit string, typ Type, help string, read func(*mem.ArenaStats) int64) family[*namedArena] {
	return family[*namedArena]{Metric{name, unit, typ, help, []string{labelPool}}, func(s *namedArena, out emit) { out(float64(read(&s.stats)), s.name) }}
}
