package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// serveTransferMetrics serves an engine's figures on addr until the returned function is called; with no address it does nothing.
func serveTransferMetrics(ctx context.Context, addr string, stats func() transfer.Stats) (stop func() error, err error) {
	if addr == "" {
		return func() error { return nil }, nil
	}
	m := telemetry.New()
	m.SetTransfer(stats)
	srv, err := m.Serve(ctx, addr)
	if err != nil {
		return nil, err
	}
	slog.Info("serving metrics", "url", fmt.Sprintf("http://%s/metrics", srv.Addr()))
	return srv.Close, nil
}

// mooncakeStats are the figures of a Mooncake server, as those of an engine that offers one segment.
func mooncakeStats(s *mooncake.Server) transfer.Stats {
	t := s.Stats()
	return transfer.Stats{
		Segments: 1, Requests: int64(t.Reads + t.Writes), Refused: int64(t.Rejected + t.RefusedRDMA), Malformed: int64(t.Malformed),
		BytesIn: int64(t.WrittenBytes), BytesOut: int64(t.ReadBytes),
	}
}
