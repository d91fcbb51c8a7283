package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/hoststream"
	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
)

// Engine combines a device, its copy streams, the tiers and the store. All methods are safe for
// concurrent use, including Close. Calls during and after Close fail with ErrClosed, or with the
// error of a closed device. Close the streams of OpenStream and free memory of the device before
// Close.
type Engine struct {
	cfg     Config
	groups  groups
	dev     device.Device
	planner *plan.Planner
	budget  *plan.Budget
	nics    *gdr.NICs           // or nil
	carrier *streamcopy.Carrier // of nics, for copy streams; or nil

	pinned     *mem.Region
	cache      *cache.Tier
	lower      []tier.Tier
	direct     *directStorage     // nil if not in use
	directMode device.StorageMode // see DirectStatus.Mode
	hosts      *hoststream.Set    // nil without Config.HostStreams
	store      *store.Store
	closers    unwind.Stack

	exporter *exporter
	events   tier.Events

	mu       sync.Mutex
	notes    []string // guarded by mu
	refusals int64    // registrations that NICs refused under GDRAuto; guarded by mu
	refusal  error    // the latest refusal; guarded by mu
}

// Device returns the device. The engine closes it.
func (e *Engine) Device() device.Device { return e.dev }

// Store returns the store, for its statistics and for loads and dumps of pages outside a Cache. The
// engine closes it.
func (e *Engine) Store() *store.Store { return e.store }

// PlanFigures returns the statistics of the planner, which selects the paths of copies, and of the
// interference budget.
func (e *Engine) PlanFigures() plan.Figures { return e.planner.Figures() }

// ReportSlowdown reports the slowdown, in percent, of the host program's own work by copies. Under
// the balanced and background policies, copies then use fewer thread blocks until the slowdown is
// within the budget, and more again later. This does not apply to layers that a stream of the
// program waits for. Without reports, the planner uses measured costs. Call it for each
// measurement, up to many times a second. Negative values count as zero. It does not block.
func (e *Engine) ReportSlowdown(percent float64) { e.budget.Hint(percent) }

// Identity returns the identity of the store's blocks, or of the first page group's blocks.
func (e *Engine) Identity() block.Identity { return e.groups.ids[0] }

// Tiers returns the tiers of the pipeline, fast to slow.
func (e *Engine) Tiers() []tier.Tier { return append([]tier.Tier{e.cache}, e.lower...) }

// Notes returns the fallbacks of the engine and its streams with their causes, including refused
// registrations of memory.
func (e *Engine) Notes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	notes := slices.Clone(e.notes)
	if e.refusal != nil {
		notes = append(notes, fmt.Sprintf("NICs rejected memory %d times, its copies use other paths; the last error: %v", e.refusals, e.refusal))
	}
	return notes
}

// note adds notes that e does not have yet.
func (e *Engine) note(notes ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range notes {
		if !slices.Contains(e.notes, n) {
			e.notes = append(e.notes, n)
		}
	}
}

// NICs returns the NICs that copies use, each with the reason for its selection. It returns none if
// no NIC is used. Under GDRAuto the planner decides for each batch whether to use them.
func (e *Engine) NICs() []gdr.Choice {
	if e.nics == nil {
		return nil
	}
	return e.nics.Choices()
}

// NICStats returns the statistics of each NIC, in the order of Engine.NICs. It is safe for
// concurrent use, also after Close.
func (e *Engine) NICStats() []stream.NICStats {
	if e.nics == nil {
		return nil
	}
	return e.nics.Stats()
}

// ExportTo adds the engine's metrics to m, for programs that serve metrics themselves. The metrics
// stay readable after Close.
func (e *Engine) ExportTo(m *telemetry.Metrics) error {
	m.SetStore(e.store.Stats)
	m.SetPlanner(e.PlanFigures)
	m.SetNICs(e.NICStats)
	m.AddJournal(&e.exporter.journal)
	m.SetConfig(e.cfg.list())
	var errs []error
	for _, t := range e.Tiers() {
		errs = append(errs, m.SetTier(t.Name(), t))
	}
	return errors.Join(errs...)
}

// WriteMetrics writes the engine's metrics in the Prometheus text format.
func (e *Engine) WriteMetrics(w io.Writer) error { return e.exporter.metrics.WriteText(w) }

// Close completes the store's writes, then closes all components in reverse order of opening. It
// stops at the first component that cannot be closed, because ctx ends or the component is in use
// (ErrBusy), and frees no memory that this component or the hardware may access. The error names
// the component, and Close may be called again. A component that closes with an error does not stop
// Close. A concurrent Close waits for the first until its ctx ends. After everything is closed
// Close returns nil.
func (e *Engine) Close(ctx context.Context) error {
	e.exporter.state.Store(stateClosing)
	return closing(e.closers.Close(ctx))
}

// usable returns ErrClosed after Close was called.
func (e *Engine) usable() error {
	if e.exporter.state.Load() == stateClosing {
		return fmt.Errorf("the engine is closed: %w", errdefs.ErrClosed)
	}
	return nil
}

func closing(err error) error {
	if err != nil {
		return fmt.Errorf("close engine: %w", err)
	}
	return nil
}
