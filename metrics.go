package kvlane

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/telemetry"
)

// exporter holds the metrics of an Engine or a Manager, and serves them if an address is
// configured.
type exporter struct {
	metrics *telemetry.Metrics
	journal journal.Journal
	state   atomic.Int32
}

// The states of an exporter.
const (
	stateOpening int32 = iota
	stateOpen
	stateClosing
)

func newExporter() *exporter {
	x := &exporter{metrics: telemetry.New()}
	x.metrics.SetReady(x.ready)
	return x
}

// ready is the check of /readyz. It returns an error while opening and after Close was called.
func (x *exporter) ready() error {
	switch x.state.Load() {
	case stateOpen:
		return nil
	case stateOpening:
		return fmt.Errorf("opening: %w", errdefs.ErrBusy)
	}
	return fmt.Errorf("closing: %w", errdefs.ErrClosed)
}

// serve serves the metrics on addr until closers are closed. An empty addr disables it. Call it
// before opening anything else, so that opening fails early if the address is in use.
func (x *exporter) serve(ctx context.Context, addr, rank string, closers *unwind.Stack) error {
	if addr == "" {
		return nil
	}
	s, err := x.metrics.Serve(context.WithoutCancel(ctx), rankAddr(addr, rank))
	if err != nil {
		return err
	}
	closers.AddPlain("metrics server", s.Close)
	return nil
}

// rankAddr replaces {rank} in the path of a socket.
func rankAddr(addr, rank string) string {
	if !strings.HasPrefix(addr, "unix:") {
		return addr
	}
	return strings.ReplaceAll(addr, "{rank}", rank)
}

// checkMetricsAddr returns an error for a malformed address. It also refuses port 0, because the
// selected port is not reported.
func checkMetricsAddr(addr string) error {
	if addr == "" {
		return nil
	}
	if err := telemetry.CheckAddr(rankAddr(addr, "0")); err != nil {
		return fmt.Errorf("metrics_addr: %w", err)
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && !strings.HasPrefix(addr, "unix:") && strings.Trim(port, "0") == "" {
		return fmt.Errorf("metrics_addr: port %q is not 1 to 65535: %w", port, errdefs.ErrInvalid)
	}
	return nil
}
