package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
)

// Engine is a device with the store over it. All methods are safe for concurrent use, Close too, by any number of goroutines.
// What is called while the engine closes, or afterwards, fails with ErrClosed or as a closed device does. What the engine has
// handed out is not to be used any more then: close streams of OpenStream before, and free memory of the device.
type Engine struct {
	cfg     Config
	groups  groups
	dev     device.Device
	planner *plan.Planner
	budget  *plan.Budget
	nics    *gdr.NICs           // nil: none are used
	carrier *streamcopy.Carrier // of nics, for copy streams; nil: these go without

	pinned  *mem.Region
	cache   *cache.Tier
	lower   []tier.Tier
	files   *streamfile.Stream // that the files of lower are read by; nil: there are none
	hosts   *hostStreams       // nil: no stream of the host program is adopted
	store   *store.Store
	closers unwind.Stack

	exporter *exporter

	softUnderAuto bool // GDRAuto takes NICs in software too

	mu       sync.Mutex
	notes    []string // guarded by mu
	refusals int64    // that auto went on after; guarded by mu
	refusal  error    // the last of them; guarded by mu
}

// Open validates c, opens the device and the tiers, and returns the engine over them. On failure everything opened so far is
// closed again; what does not close within half a minute is left, and the error says what. The context bounds the opening only.
func Open(ctx context.Context, c Config) (*Engine, error) { return open(ctx, c, false) }

// open is Open; where softUnderAuto is true GDRAuto takes NICs in software too.
func open(ctx context.Context, c Config, softUnderAuto bool) (_ *Engine, err error) {
	if err := c.readFile(ctx); err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	groups, err := c.groups()
	if err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	e := &Engine{cfg: c, groups: groups, closers: unwind.New(), exporter: newExporter(), softUnderAuto: softUnderAuto}
	defer func() {
		if err != nil {
			err = errors.Join(err, closing(e.closers.Undo(ctx, unwind.Timeout)))
		}
	}()
	with := func(step func(context.Context) error) func() error { return func() error { return step(ctx) } }
	for _, step := range []func() error{with(e.serveMetrics), e.openDevice, e.openNICs, with(e.openPlanner), e.openCache, with(e.openLower), e.openHostStreams, with(e.openStore)} {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := step(); err != nil {
			return nil, fmt.Errorf("open engine: %w", err)
		}
	}
	if err := e.ExportTo(e.exporter.metrics); err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	e.exporter.state.Store(stateOpen)
	return e, nil
}

func (e *Engine) serveMetrics(ctx context.Context) error {
	return e.exporter.serve(ctx, e.cfg.MetricsAddr, e.cfg.rank(), &e.closers)
}

func (e *Engine) openDevice() error {
	c := e.cfg.Device
	// A simulated device's memory has to be where this machine's NICs can be given it.
	c.Sim.HostAddresses = c.Sim.HostAddresses || e.cfg.wantsNICs()
	d, err := OpenDevice(c)
	if err != nil {
		return err
	}
	e.dev = d
	e.closers.AddPlain("device", d.Close)
	if e.cfg.Stream.Path == stream.PathNone {
		e.cfg.Stream.Path = streamcopy.OnlyPath(d)
	}
	return nil
}

// openPlanner comes before the cache: what measuring needs of pinned memory is free by then again.
func (e *Engine) openPlanner(ctx context.Context) error {
	s := &e.cfg.Stream
	var nics profile.NICs // that copy streams have
	if e.carrier != nil {
		nics = e.nics
	}
	found, notes, err := profile.Find(ctx, e.dev, nics, s.Calibration, s.ProfileDir)
	if err != nil {
		return fmt.Errorf("find the profile of the device: %w", err)
	}
	e.note(notes...)
	if e.budget, err = plan.NewBudget(s.Budget); err != nil {
		return err
	}
	if e.planner, err = plan.New(found, plan.Options{Budget: e.budget}); err != nil { // each stream has it under its own policy
		return err
	}
	e.planNICs(ctx)
	return nil
}

func (e *Engine) openCache() error {
	image := e.groups.formats.MaxImageBytes()
	slots := e.cfg.Store.slotBytes(e.groups.formats) / image
	bytes := slots * image
	if err := checkMemory(os.DirFS("/"), bytes); err != nil {
		return err
	}
	pinned, err := device.AllocSlots(e.dev, slots, image)
	if err != nil {
		return fmt.Errorf("allocate %d bytes of pinned memory for the cache: %w", bytes, err)
	}
	e.pinned = pinned
	if n, ok := e.dev.(device.Noter); ok {
		e.note(n.Notes()...)
	}
	e.closers.Add("the cache's memory", e.freeCache)
	if err := e.Register(pinned); err != nil {
		return err
	}
	t, err := cache.Open(cache.Config{Memory: pinned, Formats: e.groups.formats, Transient: e.cfg.Store.passing()})
	if err != nil {
		return fmt.Errorf("open cache tier: %w", err)
	}
	e.cache = t
	e.closers.Add("cache tier", t.Close)
	return nil
}

// checkMemory refuses a cache that does not fit in the memory that the machine and the process's
// cgroups have left. Else the kernel would end a process once the cache fills. files begins at the
// machine's root.
func checkMemory(files fs.FS, bytes int64) error {
	if err := limits.Read(files).CheckMemory(bytes); err != nil {
		return fmt.Errorf("allocate the cache: %w; make it smaller (cache_bytes), or raise the limit", err)
	}
	return nil
}

// freeCache keeps the cache's memory where a NIC may still have it.
func (e *Engine) freeCache(ctx context.Context) error {
	if err := e.Unregister(ctx, e.pinned); err != nil {
		return fmt.Errorf("free the cache's memory: %w", err)
	}
	return e.dev.Free(e.pinned)
}

func (e *Engine) openStore(ctx context.Context) error {
	s, err := store.Open(store.Config{
		Formats: e.groups.formats, Layers: e.groups.layers, Cache: e.cache, Next: e.lower,
		OpenLoad: e.openLoads, OpenDump: e.openDumps,
		Verify: e.cfg.Store.Verify, Readers: e.cfg.Store.Readers, Writers: e.cfg.Store.Writers, Tasks: e.cfg.Store.Tasks,
		RowBytes: e.cfg.Stream.rowBytes(), LeaseMax: e.cfg.Store.LeaseMax, WaitMax: e.cfg.Store.WaitMax, AdmitAlways: e.cfg.Store.AdmitAlways, Hooks: e.cfg.Store.Hooks,
	})
	if err != nil {
		return err
	}
	e.store = s
	e.closers.Add("store", s.Close)
	if e.hosts != nil { // nothing is to be opened once their streams wait
		return s.OpenStreams(ctx)
	}
	return nil
}

// OpenStream opens another copy stream on the engine's device, configured as that of the store's loads. The caller closes it before
// the engine.
//
// Under GDRRequire the store's streams are of NICs alone, and this is still a copy stream, since an EventStream can wait for a
// queue of the device on the device, and a NIC cannot. What dumps by NIC have to wait for is then waited for by the host: name in
// store.DumpOptions.After a mem.Dependency whose Done is closed once the work of the queue has completed, such as a ticket
// of another stream, or one of your own over a device.Event.
//
// ErrClosed once Engine.Close has been called.
func (e *Engine) OpenStream() (stream.EventStream, error) {
	if err := e.usable(); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	loads, _ := e.cfg.Stream.Goals()
	return e.openCopyStream(e.carrier, loads)
}

// openCopyStream opens a copy stream, with the path by NIC if there is one, for a goal.
func (e *Engine) openCopyStream(nic *streamcopy.Carrier, goal plan.Goal) (stream.EventStream, error) {
	c := &e.cfg.Stream
	o := streamcopy.Options{Path: c.Path, Policy: c.Policy, QueueDepth: c.QueueDepth, CTAs: c.CTAs, StagingBytes: c.StagingBytes, NIC: nic, Prepare: e.cfg.HostStreams}
	o.Policy.Goal = goal
	if o.StagingBytes == 0 && o.Policy.Goal.Weighs() { // no batch of the store is longer than the cache
		o.StagingBytes = min(streamcopy.BesideStagingBytes, max(streamcopy.DefaultStagingBytes, e.cfg.Store.slotBytes(e.groups.formats)))
	}
	if e.planner != nil { // not so while NICs in software are measured
		o.Planner = e.planner
	}
	return streamcopy.Open(e.dev, o)
}

// Device returns the device. The engine closes it.
func (e *Engine) Device() device.Device { return e.dev }

// Store returns the store, for its figures, and for pages that no Cache describes. The engine closes it.
func (e *Engine) Store() *store.Store { return e.store }

// PlanFigures returns the figures of what chooses the streams' paths, and of what bounds copies where harm counts.
func (e *Engine) PlanFigures() plan.Figures { return e.planner.Figures() }

// ReportSlowdown tells by how many percent the host program's own work takes longer than without copies beside it. Under
// the balanced and the background policy copies then take fewer thread blocks until it is within the budget, and more
// again when there is room; not so layers that a stream of the program stands still for. Call it as often as something is measured, many times a second if need be; without it copies go by
// what they are known to cost. It does not block, and negative values count as none.
func (e *Engine) ReportSlowdown(percent float64) { e.budget.Hint(percent) }

// Identity returns the identity that the store's blocks have: of the first page group where there are several.
func (e *Engine) Identity() block.Identity { return e.groups.ids[0] }

// Tiers returns the tiers of the pipeline, fast to slow.
func (e *Engine) Tiers() []tier.Tier { return append([]tier.Tier{e.cache}, e.lower...) }

// Notes returns what the user should know about how the engine and its streams were opened, and memory registered: fallbacks, and why.
func (e *Engine) Notes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	notes := slices.Clone(e.notes)
	if e.refusal != nil {
		notes = append(notes, fmt.Sprintf("NICs have refused memory %d times, whose copies go without them: %v", e.refusals, e.refusal))
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

// Close finishes what the store still has to write, then closes everything in the reverse order of opening. It stops at what does
// not close, because ctx ends or something is still in use (ErrBusy), and frees nothing that this or hardware may still touch:
// the error says what is left, and Close may be called again. What closes and has a failure to tell does not stop it. While
// another Close is under way it waits for that, until ctx ends. Once all is closed it returns nil.
func (e *Engine) Close(ctx context.Context) error {
	e.exporter.state.Store(stateClosing)
	return closing(e.closers.Close(ctx))
}

// usable returns ErrClosed once Close has been called.
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
