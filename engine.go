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
	"github.com/kvlane/kvlane/stream/hoststream"
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

	pinned  *mem.Region
	cache   *cache.Tier
	lower   []tier.Tier
	files   *streamfile.Stream // reads the files of lower; or nil
	hosts   *hoststream.Set    // nil without Config.HostStreams
	store   *store.Store
	closers unwind.Stack

	exporter *exporter

	mu       sync.Mutex
	notes    []string // guarded by mu
	refusals int64    // refused registrations under GDRAuto; guarded by mu
	refusal  error    // the latest of them; guarded by mu
}

// Open validates c, opens the device and the tiers, and returns the engine over them. After a
// failure it closes everything that it has opened. Parts that do not close within half a minute are
// left open, and named in the error. ctx bounds the opening only.
func Open(ctx context.Context, c Config) (_ *Engine, err error) {
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
	e := &Engine{cfg: c, groups: groups, closers: unwind.New(), exporter: newExporter()}
	defer func() {
		if err != nil {
			err = errors.Join(err, closing(e.closers.Undo(ctx, unwind.Timeout)))
		}
	}()
	with := func(step func(context.Context) error) func() error { return func() error { return step(ctx) } }
	for _, step := range []func() error{with(e.serveMetrics), e.openDevice, with(e.openNICs), with(e.openPlanner), e.openCache, with(e.openLower), e.openHostStreams, with(e.openStore)} {
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
	// NICs of this machine can access simulated device memory only at host addresses.
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

// openPlanner must come before the cache: calibration needs pinned memory, which is free again
// afterwards.
func (e *Engine) openPlanner(ctx context.Context) error {
	s := &e.cfg.Stream
	var nics profile.NICs // of copy streams
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
	if e.planner, err = plan.New(found, plan.Options{Budget: e.budget}); err != nil { // each stream uses it under its own policy
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

// checkMemory returns an error if a cache does not fit into the free memory of the machine and of
// the process's cgroups. Otherwise the kernel would kill a process when the cache fills. files is
// the root of the machine's file system.
func checkMemory(files fs.FS, bytes int64) error {
	if err := limits.Read(files).CheckMemory(bytes); err != nil {
		return errdefs.WithRemedy(fmt.Errorf("allocate the cache: %w", err),
			"make the cache smaller (cache_bytes, --cache-bytes) or raise the limit; kvlane doctor shows the memory and its limits")
	}
	return nil
}

// freeCache frees the memory of the cache, unless a NIC may still access it.
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
		RowBytes: e.cfg.Stream.rowBytes(), LeaseMax: e.cfg.Store.LeaseMax, WaitMax: e.cfg.Store.WaitMax, AdmitAlways: e.cfg.Store.Admission == AdmissionAlways, Hooks: e.cfg.Store.Hooks,
	})
	if err != nil {
		return err
	}
	e.store = s
	e.closers.Add("store", s.Close)
	if e.hosts != nil { // a stream must not be opened while a host stream waits
		return s.OpenStreams(ctx)
	}
	return nil
}

// OpenStream opens another copy stream on the engine's device, configured as that of the store's
// loads. The caller closes it before the engine.
//
// Under GDRRequire the store's streams use NICs only, but this is a copy stream: an EventStream can
// wait on the device, and a NIC cannot. The host then waits for the dependencies of dumps. Add a
// mem.Dependency to store.DumpOptions.After whose Done is closed when the work has completed, such
// as a ticket of another stream, or one of your own over a device.Event.
//
// Errors: ErrClosed after Engine.Close was called.
func (e *Engine) OpenStream() (stream.EventStream, error) {
	if err := e.usable(); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	loads, _ := e.cfg.Stream.Goals()
	return e.openCopyStream(e.carrier, loads)
}

// openCopyStream opens a copy stream for a goal. nic is its path by NIC, or nil.
func (e *Engine) openCopyStream(nic *streamcopy.Carrier, goal plan.Goal) (stream.EventStream, error) {
	c := &e.cfg.Stream
	o := streamcopy.Options{Path: c.Path, Policy: c.Policy, QueueDepth: c.QueueDepth, CTAs: c.CTAs, StagingBytes: c.StagingBytes, NIC: nic, Prepare: e.cfg.HostStreams}
	o.Policy.Goal = goal
	if o.StagingBytes == 0 && o.Policy.Goal.Weighs() { // no batch of the store exceeds the cache
		o.StagingBytes = min(streamcopy.BesideStagingBytes, max(streamcopy.DefaultStagingBytes, e.cfg.Store.slotBytes(e.groups.formats)))
	}
	if e.planner != nil { // nil while software NICs are measured
		o.Planner = e.planner
	}
	return streamcopy.Open(e.dev, o)
}

// openHostStreams must come before the store. The store closes first, and ends the loads that
// streams wait for.
func (e *Engine) openHostStreams() (err error) {
	if !e.cfg.HostStreams {
		return nil
	}
	if e.hosts, err = hoststream.Open(e.dev, store.DefaultTasks, e.groups.shards()); err != nil {
		return err // names the operation
	}
	e.closers.Add("host streams", e.hosts.Close)
	return nil
}

// AdoptStream returns the program's stream with this native handle, a CUstream or cudaStream_t.
// Zero is the default stream. It needs Config.HostStreams. The program keeps the stream, and must
// not destroy it while it uses the HostStream. There is nothing to release. Adopt each stream once:
// few streams may wait at the same time (HostStream.WaitLoad).
//
// Errors: ErrNotSupported if the stream is capturing a graph, ErrInvalid if it belongs to another
// device or context or is the default stream of each thread. See device.StreamAdopter.
func (e *Engine) AdoptStream(handle uintptr) (*HostStream, error) { return e.hosts.Adopt(handle) }

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
