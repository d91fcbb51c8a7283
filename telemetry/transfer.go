package telemetry

import (
	"maps"
	"slices"

	"github.com/kvlane/kvlane/transfer"
)

const labelOutcome = "outcome"

// SetTransfer sets the source of the metrics of a transfer engine. Nil removes it.
func (m *Metrics) SetTransfer(stats func() transfer.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transfer = stats
}

// transferFamilies are the metrics of a transfer engine.
var transferFamilies = []family[*transfer.Stats]{
	transferGauge("kvlane_transfer_segments", "segments", "Segments offered to peers.", func(s *transfer.Stats) int64 { return int64(s.Segments) }),
	transferGauge("kvlane_transfer_connections", "connections", "Connections of peers to the engine.", func(s *transfer.Stats) int64 { return int64(s.Connections) }),
	transferCounter("kvlane_transfer_requests_total", "requests", "Requests served.", func(s *transfer.Stats) int64 { return s.Requests }),
	transferCounter("kvlane_transfer_refused_requests_total", "requests", "Requests refused.", func(s *transfer.Stats) int64 { return s.Refused }),
	transferCounter("kvlane_transfer_malformed_connections_total", "connections", "Connections with malformed data.", func(s *transfer.Stats) int64 { return s.Malformed }),
	transferCounter("kvlane_transfer_written_bytes_total", "bytes", "Bytes that peers wrote here over connections.", func(s *transfer.Stats) int64 { return s.BytesIn }),
	transferCounter("kvlane_transfer_read_bytes_total", "bytes", "Bytes that peers read here over connections.", func(s *transfer.Stats) int64 { return s.BytesOut }),
	transferGauge("kvlane_transfer_batches", "batches", "The engine's own batches in progress.", func(s *transfer.Stats) int64 { return int64(s.Batches) }),
	{
		Metric{"kvlane_transfer_carried_bytes_total", "bytes", Counter, "Bytes read and written by the engine's own batches.", []string{labelPath}},
		func(s *transfer.Stats, out emit) {
			for _, p := range s.Paths {
				out(float64(p.Bytes), p.Path.String())
			}
		},
	},
	{
		Metric{"kvlane_transfer_tasks_total", "tasks", Counter, "Finished tasks of those batches, by the path of their last bytes.", []string{labelPath, labelOutcome}},
		func(s *transfer.Stats, out emit) {
			for _, p := range s.Paths {
				for _, status := range slices.Sorted(maps.Keys(p.Tasks)) {
					out(float64(p.Tasks[status]), p.Path.String(), status.String())
				}
			}
		},
	},
	transferCounter("kvlane_transfer_fallbacks_total", "parts", "Parts of batches that moved by another path than expected.", func(s *transfer.Stats) int64 { return s.Fallbacks }),
	transferCounter("kvlane_transfer_retries_total", "parts", "Parts of batches that were sent again.", func(s *transfer.Stats) int64 { return s.Retries }),
	transferCounter("kvlane_transfer_fences_total", "connections", "Broken connections that were fenced at their target.", func(s *transfer.Stats) int64 { return s.Fences }),
	transferCounter("kvlane_transfer_nic_refusals_total", "regions", "Regions that NICs refused; they use other paths.", func(s *transfer.Stats) int64 { return s.Refusals }),
	transferGauge("kvlane_transfer_queues_left", "queue pairs", "Queue pairs that failed to connect and are not yet closed by their NICs.", func(s *transfer.Stats) int64 { return int64(s.QueuesLeft) }),
	transferCounter("kvlane_transfer_connect_retries_total", "tries", "Retries to connect a queue pair because the peer's link address was not found in time, over all users of the NICs.", func(s *transfer.Stats) int64 { return s.ConnectRetries }),
	transferCounter("kvlane_transfer_reconnects_total", "connections", "Connections to other engines made again after one broke.", func(s *transfer.Stats) int64 { return s.Reconnects }),
	transferGauge("kvlane_transfer_metadata_failing", "1", "1 while leases cannot be renewed.", func(s *transfer.Stats) int64 { return flag(s.Metadata != nil) }),
}

func transferCounter(name, unit, help string, read func(*transfer.Stats) int64) family[*transfer.Stats] {
	return family[*transfer.Stats]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *transfer.Stats, out emit) { out(float64(read(s))) }}
}

func transferGauge(name, unit, help string, read func(*transfer.Stats) int64) family[*transfer.Stats] {
	f := transferCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}
