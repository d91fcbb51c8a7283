package telemetry

import "github.com/kvlane/kvlane/mem"

const labelPool = "pool"

// SetBuffers sets the source of the buffer metrics with label name. Nil removes it.
func (m *Metrics) SetBuffers(name string, stats func() mem.BufferStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if stats == nil {
		delete(m.buffers, name)
		return
	}
	m.buffers[name] = stats
}

// namedBuffers are the statistics of buffers and their label.
type namedBuffers struct {
	name  string
	stats mem.BufferStats
}

// bufferFamilies are the metrics of buffer pools.
var bufferFamilies = []family[*namedBuffers]{
	bufferFamily("kvlane_buffers", "buffers", Gauge, "Buffers of the pool.", func(s *mem.BufferStats) int64 { return int64(s.Slots) }),
	bufferFamily("kvlane_buffers_lent", "buffers", Gauge, "Buffers in use, including those in quarantine.", func(s *mem.BufferStats) int64 { return int64(s.Lent) }),
	bufferFamily("kvlane_buffers_high_water", "buffers", Gauge, "Most buffers in use at a time.", func(s *mem.BufferStats) int64 { return int64(s.HighWater) }),
	bufferFamily("kvlane_buffers_quarantined", "buffers", Gauge, "Buffers that hardware may still access.", func(s *mem.BufferStats) int64 { return int64(s.Quarantined) }),
	bufferFamily("kvlane_buffers_waiting", "requests", Gauge, "Requests that wait for a buffer.", func(s *mem.BufferStats) int64 { return int64(s.Waiting) }),
	bufferFamily("kvlane_buffers_waits_total", "requests", Counter, "Requests that had to wait for a buffer.", func(s *mem.BufferStats) int64 { return s.Waits }),
	bufferFamily("kvlane_buffers_unzeroed_total", "failures", Counter, "Failures to zero a buffer, which then stays in use.", func(s *mem.BufferStats) int64 { return s.Unzeroed }),
	bufferFamily("kvlane_buffers_kept_total", "failures", Counter, "Failures to free the memory, which is then kept because a NIC or a device may still access it.", func(s *mem.BufferStats) int64 { return s.Kept }),
}

func bufferFamily(name, unit string, typ Type, help string, read func(*mem.BufferStats) int64) family[*namedBuffers] {
	return family[*namedBuffers]{Metric{name, unit, typ, help, []string{labelPool}}, func(s *namedBuffers, out emit) { out(float64(read(&s.stats)), s.name) }}
}
