package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/hoststream"
	"github.com/kvlane/kvlane/tier/cache"
)

// Open validates c, opens the device, the tiers and the store, and returns the engine. On failure
// it closes everything that it has opened. The error names components that do not close within half
// a minute; these stay open. ctx bounds only the opening.
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
	for _, step := range []func() error{with(e.serveMetrics), e.openDevice, with(e.openNICs), with(e.openPlanner), e.openCache, with(e.openDirect), with(e.openLower), e.openHostStreams, with(e.openStore), with(e.serveOwner)} {
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
	// Hardware NICs can access simulated device memory only at host addresses.
	c.Sim.HostAddresses = c.Sim.HostAddresses || e.cfg.wantsNICs()
	if c.Sim.Storage == (sim.StorageModel{}) {
		c.Sim.Storage.Compat = "the simulated device has no GPU Direct Storage"
	}
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

// openPlanner measures the device's paths if needed, and opens the planner. Call it before the
// cache is allocated: measuring needs pinned memory and frees it again.
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
	if e.planner, err = plan.New(found, plan.Options{Budget: e.budget}); err != nil {
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
	t, err := cache.Open(cache.Config{Memory: pinned, Formats: e.groups.formats, Transient: e.cfg.Store.passing(), Events: &e.events})
	if err != nil {
		return fmt.Errorf("open cache tier: %w", err)
	}
	e.cache = t
	e.closers.Add("cache tier", t.Close)
	return nil
}

// checkMemory returns an error if a cache of that size does not fit into the free memory of the
// machine and of the process's cgroups. The kernel would kill a process when such a cache fills.
// files is the root of the machine's file system.
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

// openHostStreams opens the set of adopted streams. Call it before opening the store: the store
// must close first, because closing it ends the loads that streams wait for.
func (e *Engine) openHostStreams() (err error) {
	if !e.cfg.HostStreams {
		return nil
	}
	if e.hosts, err = hoststream.Open(e.dev, store.DefaultTasks, e.groups.shards()); err != nil {
		return err // the error names the operation
	}
	e.closers.Add("host streams", e.hosts.Close)
	return nil
}

func (e *Engine) openStore(ctx context.Context) error {
	s, err := store.Open(store.Config{
		Formats: e.groups.formats, Layers: e.groups.layers, Cache: e.cache, Next: e.lower,
		OpenLoad: e.openLoads, OpenDump: e.openDumps,
		Verify: e.cfg.Store.Verify, Readers: e.cfg.Store.Readers, Writers: e.cfg.Store.Writers, Tasks: e.cfg.Store.Tasks,
		Direct:   e.storeDirect(),
		RowBytes: e.cfg.Stream.rowBytes(), LeaseMax: e.cfg.Store.LeaseMax, WaitMax: e.cfg.Store.WaitMax, AdmitAlways: e.cfg.Store.Admission == AdmissionAlways, Tracer: e.cfg.Store.Tracer, Hooks: noted(e.cfg.Store.Hooks, &e.exporter.journal),
	})
	if err != nil {
		return err
	}
	e.store = s
	e.closers.Add("store", s.Close)
	if e.hosts != nil { // opening a stream could block while a host stream waits
		return s.OpenStreams(ctx)
	}
	return nil
}
