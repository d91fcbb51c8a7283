package kvlane

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/telemetry"
)

// exporter has the metrics of an Engine or a Manager, and serves them on the configured address, if
// any.
type exporter struct {
	metrics *telemetry.Metrics
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

// ready is the check behind /readyz.
func (x *exporter) ready() error {
	switch x.state.Load() {
	case stateOpen:
		return nil
	case stateOpening:
		return fmt.Errorf("opening: %w", errdefs.ErrBusy)
	}
	return fmt.Errorf("closing: %w", errdefs.ErrClosed)
}

// serve serves the metrics on addr, unless it is empty, until closers close. Call it before
// anything else is opened, so that opening fails early if the address is taken.
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

// rankAddr returns addr with the rank in place of {rank} in the path of a socket.
func rankAddr(addr, rank string) string {
	if !strings.HasPrefix(addr, "unix:") {
		return addr
	}
	return strings.ReplaceAll(addr, "{rank}", rank)
}

// checkMetricsAddr returns an error for a malformed address, and for port 0: no caller would learn
// the port that is chosen.
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
