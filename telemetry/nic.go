package telemetry

import "github.com/kvlane/kvlane/stream"

const (
	labelNIC    = "nic"
	labelMethod = "method"
)

// SetNICs sets the source of the metrics of NICs. Nil removes it.
func (m *Metrics) SetNICs(stats func() []stream.NICStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nics = stats
}

// nicFamilies are the metrics of each NIC and its registered memory.
var nicFamilies = []family[*stream.NICStats]{
	nicCounter("kvlane_nic_requests_total", "requests", "Work requests that the NIC accepted.", func(s *stream.NICStats) int64 { return s.Requests }),
	nicCounter("kvlane_nic_bytes_total", "bytes", "Bytes of those requests.", func(s *stream.NICStats) int64 { return s.Bytes }),
	nicCounter("kvlane_nic_doorbells_total", "doorbells", "Times that a group of requests was submitted to the NIC.", func(s *stream.NICStats) int64 { return s.Doorbells }),
	nicCounter("kvlane_nic_failed_requests_total", "requests", "Requests that the NIC failed.", func(s *stream.NICStats) int64 { return s.Failed }),
	nicCounter("kvlane_nic_flushed_requests_total", "requests", "Requests flushed after a failure.", func(s *stream.NICStats) int64 { return s.Flushed }),
	nicCounter("kvlane_nic_broken_streams_total", "streams", "Streams over the NIC that broke.", func(s *stream.NICStats) int64 { return s.Broken }),
	nicGauge("kvlane_nic_queue_pairs", "queue pairs", "Queue pairs of streams that are open.", func(s *stream.NICStats) int64 { return s.QueuePairs }),
	nicCounter("kvlane_nic_queue_pairs_opened_total", "queue pairs", "Queue pairs opened, including those of reopened streams.", func(s *stream.NICStats) int64 { return s.QueuePairsOpened }),
	nicCounter("kvlane_nic_connect_retries_total", "tries", "Retries to connect a queue pair because the peer's link address was not found in time.", func(s *stream.NICStats) int64 { return s.ConnectRetries }),
	methodFamily("kvlane_nic_regions", "regions", Gauge, "Regions of memory registered with the NIC, by method.", func(s *stream.RegistrationStats) int64 { return s.Live }),
	methodFamily("kvlane_nic_registered_bytes", "bytes", Gauge, "Bytes of those regions.", func(s *stream.RegistrationStats) int64 { return s.Bytes }),
	methodFamily("kvlane_nic_registrations_total", "regions", Counter, "Regions registered in total.", func(s *stream.RegistrationStats) int64 { return s.Total }),
	nicCounter("kvlane_nic_registrations_failed_total", "regions", "Regions that could not be registered.", func(s *stream.NICStats) int64 { return s.RegistrationsFailed }),
}

func nicCounter(name, unit, help string, read func(*stream.NICStats) int64) family[*stream.NICStats] {
	return family[*stream.NICStats]{Metric{name, unit, Counter, help, []string{labelNIC}}, func(s *stream.NICStats, out emit) { out(float64(read(s)), s.Name) }}
}

func nicGauge(name, unit, help string, read func(*stream.NICStats) int64) family[*stream.NICStats] {
	f := nicCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}

func methodFamily(name, unit string, typ Type, help string, read func(*stream.RegistrationStats) int64) family[*stream.NICStats] {
	return family[*stream.NICStats]{
		Metric{name, unit, typ, help, []string{labelNIC, labelMethod}},
		func(s *stream.NICStats, out emit) {
			for i := range s.Registrations {
				out(float64(read(&s.Registrations[i])), s.Name, s.Registrations[i].Method)
			}
		},
	}
}
