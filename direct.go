package kvlane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// Direct selects whether blocks are copied directly between files and device memory, by cuFile
// (GPUDirect Storage). It applies to loads, and to dumps of the pipelines "file" and "log".
type Direct string

// The values of Direct.
const (
	// DirectOff always uses the engine's pinned memory.
	DirectOff Direct = "off"
	// DirectAuto, the default, uses cuFile in directories for which a stored profile shows that it
	// was clearly faster than pinned memory (see profile.CompareDirect). In directories without a
	// profile it uses cuFile if GPUDirect Storage works. It loads the library only if a profile
	// prefers cuFile, or if the kernel's modules, the file system and the disk support GPUDirect
	// Storage. With Config.HostStreams it never uses cuFile.
	DirectAuto Direct = "auto"
	// DirectAlways uses cuFile wherever it works, also in its compatibility mode, in which the
	// library copies through its own host memory. Blocks that cuFile cannot read pass through
	// pinned memory.
	DirectAlways Direct = "always"
	// DirectRequire uses GPUDirect Storage, and Open returns an error with the reason if that is
	// not possible. A block whose direct transfer fails is not loaded or stored.
	DirectRequire Direct = "require"
)

// DefaultDirectBytes is the default of StoreConfig.DirectBytes.
const DefaultDirectBytes = 64 << 20

// DirectStatus describes the engine's use of direct storage.
type DirectStatus struct {
	// On is set if loads use direct storage when possible.
	On bool
	// Mode is the mode of the files, with its reason. If On is not set, the reason states why loads
	// do not use direct storage.
	Mode device.StorageMode
	// Stats are the statistics of direct reads.
	Stats streamfile.DirectStats
}

// validateDirect returns every problem of the direct storage settings.
func (c *Config) validateDirect() error {
	s := &c.Store
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch s.Direct {
	case "", DirectOff, DirectAuto, DirectAlways:
	case DirectRequire:
		if s.GDR == GDRRequire {
			bad("direct requires direct storage, and gdr a NIC: require one of them")
		}
		if dirs, err := s.dirs(); err == nil && len(dirs) == 0 {
			bad("direct requires direct storage, but no file tier is configured: give a directory")
		}
	default:
		bad("unknown choice %q for direct: must be off, auto, always or require", s.Direct)
	}
	if s.DirectBytes < 0 || s.DirectBytes > MaxCacheBytes {
		bad("the memory of direct storage, %d bytes, is not 0 to %d", s.DirectBytes, int64(MaxCacheBytes))
	}
	if s.DirectQueues < 0 || s.DirectQueues > maxDirectQueues {
		bad("%d queues of direct storage are not 0 to %d", s.DirectQueues, maxDirectQueues)
	}
	return errors.Join(errs...)
}

// maxDirectQueues bounds StoreConfig.DirectQueues.
const maxDirectQueues = 1024

// deviceMemory allocates memory of a device.
type deviceMemory struct{ device.Device }

// Alloc implements mem.Allocator.
func (d deviceMemory) Alloc(bytes int64) (*mem.Region, error) {
	return d.Device.Alloc(bytes, device.AllocOptions{})
}

// openDirect opens direct storage for a tier of files. If that is not possible, it returns an error
// under DirectRequire. Otherwise Engine.Direct has the reason and, unless Direct was left empty,
// Engine.Notes too.
func (e *Engine) openDirect(ctx context.Context) error {
	c := &e.cfg.Store
	if c.Direct == DirectOff {
		e.directMode.Reason = "direct is off"
		return nil
	}
	dirs, err := c.dirs()
	if err != nil {
		return err
	}
	why := errNoFiles
	if len(dirs) > 0 {
		why = e.tryDirect(ctx, existing(dirs))
	}
	switch {
	case why == nil:
		e.note("files are read by cuFile: " + e.directMode.Reason)
	case c.Direct == DirectRequire:
		return fmt.Errorf("direct requires GPU Direct Storage: %w", why)
	default:
		e.directMode = device.StorageMode{Reason: why.Error()}
		if c.Direct != "" {
			e.note("direct storage is not used: " + why.Error())
		}
	}
	return nil
}

var errNoFiles = fmt.Errorf("no file tier is configured: %w", errdefs.ErrNotSupported)

// tryDirect opens direct storage. On failure it closes everything that it has opened.
func (e *Engine) tryDirect(ctx context.Context, dirs []string) error {
	c := &e.cfg.Store
	if err := e.canDirect(); err != nil {
		return err
	}
	measured := make([]string, len(dirs))
	if c.isDirectAuto() {
		for i, dir := range dirs {
			var err error
			if measured[i], err = e.prefersDirect(dir); err != nil {
				return err
			}
		}
	}
	st, err := storage.Open(e.dev, device.StorageOptions{})
	if err != nil {
		return err // the error names the operation
	}
	d := &directStorage{storage: st, dev: e.dev}
	if err := e.fillDirect(ctx, d, dirs, measured); err != nil {
		return errors.Join(err, d.close(context.WithoutCancel(ctx)))
	}
	e.direct = d
	e.closers.Add("direct storage", d.close)
	return nil
}

func (s *StoreConfig) isDirectAuto() bool { return s.Direct == DirectAuto || s.Direct == "" }

// prefersDirect returns an error if DirectAuto uses pinned memory for files in dir. measured
// describes the profile that prefers cuFile. It is empty if there is no profile and GPUDirect
// Storage probably works.
func (e *Engine) prefersDirect(dir string) (measured string, err error) {
	found, err := profile.CompareDirect(e.dev, dir, e.cfg.Stream.ProfileDir, e.groups.formats.MaxImageBytes())
	switch {
	case err == nil && found.PrefersDirect():
		return found.String(), nil
	case err == nil:
		return "", fmt.Errorf("%s: %s: %w", dir, found, errdefs.ErrNotSupported)
	case errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrMismatch):
		e.note("the measurement of direct storage is not used: " + err.Error())
	}
	if looker, ok := e.dev.(device.StorageLooker); ok {
		if m := looker.LookStorage(absolute(dir)); !m.Direct {
			return "", fmt.Errorf("%s: %w", m.Reason, errdefs.ErrNotSupported)
		}
	}
	return "", nil
}

// absolute returns the absolute, clean path of a directory.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// canDirect returns an error if the configuration excludes direct storage.
func (e *Engine) canDirect() error {
	c := &e.cfg
	no := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, errdefs.ErrNotSupported)...)
	}
	switch path := c.Stream.Path; {
	case c.Store.GDR == GDRRequire:
		return no("gdr requires NICs, which do not copy within the device")
	case c.HostStreams && c.Store.isDirectAuto():
		// Not measured on hardware yet.
		return no("host_streams is set, and auto does not use cuFile with it: cuFile may allocate memory while a stream of the program waits for a load, " +
			"and the driver may block that call until the load has ended; always and require use it")
	case c.Store.Verify != store.VerifyDevice:
		return no("verify is %s: the CPU must see every block", c.Store.Verify)
	case path != stream.PathNone && path != stream.PathKernel:
		return no("path %s is forced, which computes no checksums within the device", path)
	}
	for _, f := range e.groups.formats {
		if f.Algo() != block.SumTree {
			return no("checksums of %s cannot be made by copies", f.Algo())
		}
		for i := range f.Layout.Shards() {
			if n := f.Layout.ShardBytes(i); n%block.LeafBytes != 0 {
				return no("a layer of %d bytes is not whole leaves of %d", n, block.LeafBytes)
			}
		}
	}
	return nil
}

// directStorage holds the resources of direct storage, in the order of opening.
type directStorage struct {
	storage  device.Storage
	files    *streamfile.DirectFiles // or nil
	pool     *mem.SlotPool           // of loads, or nil
	dumps    *mem.SlotPool           // of dumps, or nil
	heads    *mem.Region             // pinned memory for dumps, or nil
	hostSlot *mem.Region             // pinned memory for dumps, or nil
	dev      device.Device
}

// tryDirs returns the mode of files in dirs. measured has the results of prefersDirect for dirs:
// DirectAuto needs GPUDirect Storage only in directories without a profile.
func (e *Engine) tryDirs(ctx context.Context, st device.Storage, dirs, measured []string) (mode device.StorageMode, err error) {
	c := &e.cfg.Store
	if c.ReadOnly {
		return device.StorageMode{Reason: "the mode shows when a file is opened: the directories are read-only"}, nil
	}
	for i, dir := range dirs {
		m, err := storage.Try(ctx, e.dev, st, dir)
		switch {
		case err != nil:
			return mode, fmt.Errorf("%s: %w", dir, err)
		case c.Direct != DirectAlways && measured[i] == "" && !m.Direct:
			return mode, fmt.Errorf("%s: %s: %w", dir, m.Reason, errdefs.ErrNotSupported)
		case i == 0 || !m.Direct:
			mode = m
			if measured[i] != "" {
				mode.Reason += "; " + measured[i]
			}
		}
	}
	return mode, nil
}

// fillDirect opens the resources of d, and sets the mode of the files. dirs and measured are the
// arguments of tryDirs.
func (e *Engine) fillDirect(ctx context.Context, d *directStorage, dirs, measured []string) (err error) {
	c := &e.cfg.Store
	mode, err := e.tryDirs(ctx, d.storage, dirs, measured)
	if err != nil {
		return err
	}
	image := e.groups.formats.MaxImageBytes()
	bytes := c.DirectBytes
	if bytes == 0 {
		bytes = DefaultDirectBytes
	}
	slots := max(minSlots, bytes/image)
	// Dumps to a cache or to several tiers use pinned memory.
	if tiers, err := c.tiers(); err == nil && len(tiers) == 1 && c.passing() && !c.ReadOnly {
		slots = max(minSlots, slots/2)
		if d.dumps, err = mem.NewSlotPool(deviceMemory{e.dev}, slots, image); err != nil {
			return err
		}
		if d.heads, err = e.dev.AllocHost(slots * e.groups.formats.MaxHeaderBytes()); err != nil {
			return err
		}
		if d.hostSlot, err = e.dev.AllocHost(image); err != nil {
			return err
		}
	}
	if d.pool, err = mem.NewSlotPool(deviceMemory{e.dev}, slots, image); err != nil {
		return err
	}
	if d.files, err = streamfile.OpenDirect(streamfile.DirectOptions{
		Storage: d.storage, Device: e.dev, Queues: c.DirectQueues,
		OnlyGDS: c.Direct != DirectAlways && slices.Contains(measured, ""),
	}); err != nil {
		return err
	}
	e.directMode = mode
	return nil
}

func (d *directStorage) close(ctx context.Context) error {
	// A broken queue may access slots until the files are closed.
	if d.files != nil {
		if err := d.files.Close(ctx); err != nil {
			return err
		}
	}
	for _, p := range []*mem.SlotPool{d.pool, d.dumps} {
		if p == nil {
			continue
		}
		if err := p.Close(ctx); err != nil {
			return err
		}
	}
	for _, r := range []**mem.Region{&d.heads, &d.hostSlot} {
		if *r == nil {
			continue
		}
		if err := d.dev.Free(*r); err != nil {
			return err
		}
		*r = nil
	}
	return d.storage.Close()
}

// directFiles returns the direct storage of the file and log tiers, or nil.
func (e *Engine) directFiles() dirfs.Direct {
	if e.direct == nil {
		return nil
	}
	return e.direct.files
}

// storeDirect returns the store's configuration of direct storage, or nil.
func (e *Engine) storeDirect() *store.Direct {
	if e.direct == nil {
		return nil
	}
	return &store.Direct{
		Pool: e.direct.pool, Dumps: e.direct.dumps, HostSlot: e.direct.hostSlot,
		Heads:   mem.Slots{Region: e.direct.heads, Stride: e.groups.formats.MaxHeaderBytes()},
		Require: e.cfg.Store.Direct == DirectRequire, Reason: e.directMode.Reason,
	}
}

// Direct returns whether and how the engine uses direct storage. It is safe for concurrent use,
// also after Close.
func (e *Engine) Direct() DirectStatus {
	if e.direct == nil {
		return DirectStatus{Mode: e.directMode}
	}
	return DirectStatus{On: true, Mode: e.directMode, Stats: e.direct.files.Stats()}
}
