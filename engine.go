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

// Engine is a device with the store over it. All methods are safe for concurrent use, also Close.
// Calls during and after Close fail with ErrClosed, or as on a closed device. Results of the engine
// must not be used after Close: close streams of OpenStream and free memory of the device before.
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
	direct     *directStorage     // or nil
	directMode device.StorageMode // see DirectStatus.Mode
	hosts      *hoststream.Set    // nil without Config.HostStreams
	store      *store.Store
	closers    unwind.Stack

	exporter *exporter

	mu       sync.Mutex
	notes    []string // guarded by mu
	refusals int64    // refused registrations under GDRAuto; guarded by mu
	refusal  error    // the latest of them; guarded by mu
}

// Device returns the device. The engine closes it.
func (e *Engine) Device() device.Device { return e.dev }

// Store returns the store, for its figures and for pages that are not a Cache. The engine closes
// it.
func (e *Engine) Store() *store.Store { return e.store }

// PlanFigures returns the figures of the planner, which selects the paths of streams, and of the
// budget for interference.
func (e *Engine) PlanFigures() plan.Figures { return e.planner.Figures() }

// ReportSlowdown reports by how many percent copies slow the host program's own work down. Under
// the balanced and the background policy, copies then use fewer thread blocks until the slowdown is
// within the budget, and more again later. Layers that a stream of the program waits for are
// excepted. Call it for each measurement, up to many times a second. Without it, copies use their
// known costs. Negative values count as zero. It does not block.
func (e *Engine) ReportSlowdown(percent float64) { e.budget.Hint(percent) }

// Identity returns the identity of the store's blocks, or that of the first of several page groups.
func (e *Engine) Identity() block.Identity { return e.groups.ids[0] }

// Tiers returns the tiers of the pipeline, fast to slow.
func (e *Engine) Tiers() []tier.Tier { return append([]tier.Tier{e.cache}, e.lower...) }

// Notes returns fallbacks and their causes: of opening the engine and its streams, and of
// registering memory.
func (e *Engine) Notes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	notes := slices.Clone(e.notes)
	if e.refusal != nil {
		notes = append(notes, fmt.Sprintf("NICs rejected memory %d times, its copies use other paths; the last error: %v", e.refusals, e.refusal))
	}
	return notes
}

// note adds notes, each once.
func (e *Engine) note(notes ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range notes {
		if !slices.Contains(e.notes, n) {
			e.notes = append(e.notes, n)
		}
	}
}

// NICs returns the NICs that copies use, with the reasons of their choice. Under GDRAuto the
// planner selects them for each batch. It may be empty.
func (e *Engine) NICs() []gdr.Choice {
	if e.nics == nil {
		return nil
	}
	return e.nics.Choices()
}

// NICStats returns the figures of each NIC, in the order of Engine.NICs. Safe for concurrent use,
// also after Close.
func (e *Engine) NICStats() []stream.NICStats {
	if e.nics == nil {
		return nil
	}
	return e.nics.Stats()
}

// ExportTo makes the engine the source of the engine metrics in m, for programs that serve m
// themselves. The figures stay readable after Close.
func (e *Engine) ExportTo(m *telemetry.Metrics) error {
	m.SetStore(e.store.Stats)
	m.SetPlanner(e.PlanFigures)
	m.SetNICs(e.NICStats)
	var errs []error
	for _, t := range e.Tiers() {
		errs = append(errs, m.SetTier(t.Name(), t))
	}
	return errors.Join(errs...)
}

// WriteMetrics writes the engine's metrics in Prometheus's text format.
func (e *Engine) WriteMetrics(w io.Writer) error { return e.exporter.metrics.WriteText(w) }

// Close completes the writes of the store, then closes everything in reverse order of opening. It
// stops at the first part that does not close, because ctx ends or the part is in use (ErrBusy),
// and frees no memory that this part or the hardware may access. The error names the part, and
// Close may be called again. An error of a part that is closed nevertheless does not stop Close.
// During another Close, it waits for that until ctx ends. After everything is closed it returns
// nil.
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
