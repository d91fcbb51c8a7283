package telemetry

import (
	"github.com/kvlane/kvlane/stream"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// SetFiles makes stats the source of the metrics of the stream that the tiers' files are read by;
// nil removes it.
func (m *Metrics) SetFiles(stats func() streamfile.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = stats
}

// fileFamilies are read from the figures of a stream of files.
var fileFamilies = []family[*streamfile.Stats]{
	filePathFamily("kvlane_file_batches_total", "batches", "Batches moved by a stream of files, by the path of most of their bytes.",
		func(s *streamfile.Stats, p stream.Path) int64 { return s.Batches[p] }),
	filePathFamily("kvlane_file_bytes_total", "bytes", "Bytes of those batches.",
		func(s *streamfile.Stats, p stream.Path) int64 { return s.Bytes[p] }),
	fileCounter("kvlane_file_failed_batches_total", "batches", "Batches that failed.", func(s *streamfile.Stats) int64 { return s.Failed }),
	fileCounter("kvlane_file_direct_refused_total", "files", "Files read through the page cache because their file system refuses O_DIRECT.",
		func(s *streamfile.Stats) int64 { return s.Refused }),
	fileCounter("kvlane_file_direct_unopened_total", "files", "Files read through the page cache because opening them with O_DIRECT failed for another reason.",
		func(s *streamfile.Stats) int64 { return s.Unopened }),
	fileCounter("kvlane_file_paths_given_up_total", "paths", "Paths no longer used on a file system that refused them.",
		func(s *streamfile.Stats) int64 { return s.GivenUp }),
	fileCounter("kvlane_file_unregistered_total", "buffers", "Staging buffers that io_uring could not register and pins for each transfer.",
		func(s *streamfile.Stats) int64 { return s.Unregistered }),
	fileGauge("kvlane_file_quarantined", "transfers", "Transfers whose end is unknown.",
		func(s *streamfile.Stats) int64 { return int64(s.Quarantined) }),
}

func fileCounter(name, unit, help string, read func(*streamfile.Stats) int64) family[*streamfile.Stats] {
	return family[*streamfile.Stats]{Metric{name, unit, Counter, help, nil}, func(s *streamfile.Stats, out emit) { out(float64(read(s))) }}
}

func fileGauge(name, unit, help string, read func(*streamfile.Stats) int64) family[*streamfile.Stats] {
	f := fileCounter(name, unit, help, read)
	f.Type = Gauge
	return f
}

func filePathFamily(name, unit, help string, read func(*streamfile.Stats, stream.Path) int64) family[*streamfile.Stats] {
	return family[*streamfile.Stats]{
		Metric{name, unit, Counter, help, []string{labelPath}},
		func(s *streamfile.Stats, out emit) {
			for _, p := range stream.Paths(stream.MovedByHost) {
				out(float64(read(s, p)), p.String())
			}
		},
	}
}
