package main

import (
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// mooncakeStats converts the statistics of a Mooncake server to those of an engine with one
// segment.
func mooncakeStats(s *mooncake.Server) transfer.Stats {
	t := s.Stats()
	return transfer.Stats{
		Segments: 1, Requests: int64(t.Reads + t.Writes), Refused: int64(t.Rejected + t.RefusedRDMA), Malformed: int64(t.Malformed),
		BytesIn: int64(t.WrittenBytes), BytesOut: int64(t.ReadBytes),
	}
}
