package kvlane

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// GDR says whether the store's loads and dumps travel by RDMA NICs that are connected to themselves (GPUDirect RDMA).
type GDR string

// The choices.
const (
	// GDROff does not use a NIC.
	GDROff GDR = "off"
	// GDRAuto adds the NICs that RDMAConfig selects to the paths of the engine's copy streams, where they can be used: they are
	// measured with the GPU's own paths (StreamConfig.Calibration), and the planner takes them for each batch that they are
	// the fastest for. Engine.Notes says why they cannot be used. NICs that fail a batch, or take none, are not used again;
	// store.Stats counts that and says why. It never takes a NIC in software. The host program has to name its memory to
	// Engine.Register: what is not registered travels by the other paths.
	GDRAuto GDR = "auto"
	// GDRRequire uses NICs, and is an error where that is not possible. With ProviderSoft that is a NIC in software.
	GDRRequire GDR = "require"
)

// ParseGDR reads "off", "auto" or "require".
func ParseGDR(s string) (GDR, error) {
	switch g := GDR(s); g {
	case GDROff, GDRAuto, GDRRequire:
		return g, nil
	}
	return "", fmt.Errorf("unknown choice %q for gdr: it is off, auto or require: %w", s, errdefs.ErrInvalid)
}

// RDMAProvider names whose NICs are used.
type RDMAProvider string

// The providers.
const (
	// ProviderIBV has the NICs of the machine, through libibverbs.
	ProviderIBV RDMAProvider = "ibv"
	// ProviderSoft has NICs in software, "soft0" and on, whose bytes a copy stream moves. They are there to try the path
	// without hardware; it is then reported as stream.PathNICSoft. Only GDRRequire takes them.
	ProviderSoft RDMAProvider = "soft"
)

// RDMAConfig selects NICs and says how they are used, where StoreConfig.GDR asks for any. The zero value is the default.
type RDMAConfig struct {
	Provider RDMAProvider // default ProviderIBV
	// NICs are the names of those to use, by this engine's device; copies are striped over them. Empty: the nearest one by
	// PCIe and NUMA node, or Count of the nearest.
	NICs []string
	// NICsByDevice takes the place of NICs in a configuration that engines of several devices share: the names for each
	// device, by its index. An engine whose device has none there is not opened, which is ErrInvalid.
	NICsByDevice [][]string
	// Count is how many NICs to use at most, of those that are equally near, where none is named. Default 1.
	Count int
	// Port of each NIC, from 1. Zero: the first that is active.
	Port int
	// GIDIndex is the entry of the port's table of addresses, 0 to 255. Nil: the best, RoCE v2 and IPv4 first.
	GIDIndex *int
	// MTU in bytes, from 256 to 4096 in powers of two. Zero: the port's active one.
	MTU int
	// QueuePairs on each NIC, of each stream, 256 at most. Zero is the stream's default.
	QueuePairs int
	// RegisterOnUse registers memory that a load or dump names and that Engine.Register was not told of. That holds the load or
	// dump up for milliseconds, and the memory must be given to Engine.Unregister before it is freed all the same.
	// Under GDRAuto NICs that cannot register it are not used any more.
	RegisterOnUse bool

	softAsHardware bool // NICs in software are treated as the machine's are, for tests
}

// Bounds of an RDMAConfig: more than any host has, and than any NIC is faster by.
const (
	maxNICs       = 64
	maxQueuePairs = 256
)

// validate reports everything wrong at once.
func (r *RDMAConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch r.Provider {
	case "", ProviderIBV, ProviderSoft:
	default:
		bad("unknown RDMA provider %q: it is ibv or soft", r.Provider)
	}
	if len(r.NICs) > 0 && r.NICsByDevice != nil {
		bad("NICs are named both for this device and by device")
	}
	for _, names := range append([][]string{r.NICs}, r.NICsByDevice...) {
		for i, name := range names {
			switch {
			case name == "":
				bad("NIC %d of those named has no name", i)
			case slices.Contains(names[:i], name):
				bad("NIC %q is named twice", name)
			}
		}
	}
	if r.Count < 0 || r.Count > maxNICs {
		bad("number of NICs %d is not 0 to %d", r.Count, maxNICs)
	}
	if r.Port < 0 || r.Port > 255 {
		bad("port %d of a NIC is not one of 1 to 255", r.Port)
	}
	if r.GIDIndex != nil && (*r.GIDIndex < 0 || *r.GIDIndex > 255) {
		bad("GID index %d is not one of 0 to 255", *r.GIDIndex)
	}
	switch r.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		bad("MTU %d is not one of 256, 512, 1024, 2048 and 4096", r.MTU)
	}
	if r.QueuePairs < 0 || r.QueuePairs > maxQueuePairs {
		bad("number of queue pairs %d is not 0 to %d", r.QueuePairs, maxQueuePairs)
	}
	return errors.Join(errs...)
}

// validateGDR reports what of the configuration's parts does not go together.
func (c *Config) validateGDR() error {
	var errs []error
	if c.Store.GDR != "" {
		_, err := ParseGDR(string(c.Store.GDR))
		errs = append(errs, err)
	}
	if p := c.Stream.Path; p != stream.PathNone && c.Store.GDR == GDRRequire && c.RDMA.Provider != ProviderSoft {
		errs = append(errs, fmt.Errorf("path %s is forced, and gdr requires a NIC: %w", p, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// wantsNICs reports whether NICs of the machine are to be used, if they can be.
func (c *Config) wantsNICs() bool {
	return (c.Store.GDR == GDRAuto || c.Store.GDR == GDRRequire) && c.RDMA.Provider != ProviderSoft
}

// NICChoice is a NIC, and why it is the one to use.
type NICChoice struct {
	Name   string
	Reason string // where it is, which of its ports and addresses is used, and how it reaches the device's memory
}

// nicStack is what an engine has of NICs: their provider, their registered memory, and what opens streams over them. It
// stands between the engine and the packages that a build with the tag nonic leaves out.
type nicStack interface {
	choices() []NICChoice
	// identity names the NICs with all that what they take depends on.
	identity() string
	path() stream.Path
	reaches(r *mem.Region) bool
	register(regions ...*mem.Region) error
	unregister(ctx context.Context, regions ...*mem.Region) error
	openStream() (stream.Stream, error)
	close(ctx context.Context) error
}

// openNICs opens the NICs that are asked for, or says why the engine goes on without.
func (e *Engine) openNICs() error {
	c := &e.cfg
	auto := c.Store.GDR == GDRAuto
	switch {
	case !auto && c.Store.GDR != GDRRequire:
		return nil
	case auto && c.RDMA.Provider == ProviderSoft && !c.RDMA.softAsHardware:
		e.noteWithoutNIC("gdr is auto, which never takes a NIC in software")
		return nil
	case auto && c.Stream.Path != stream.PathNone: // there is nothing to plan
		e.noteWithoutNIC(fmt.Sprintf("path %s is forced", c.Stream.Path))
		return nil
	}
	// Copy streams that move the bytes of NICs in software do not take these in turn.
	n, err := newNICStack(&c.RDMA, e.dev, func() (stream.Stream, error) { return e.openCopyStream(nil) })
	switch {
	case err == nil:
	case auto:
		e.noteWithoutNIC(err.Error())
		return nil
	default:
		return fmt.Errorf("gdr requires a NIC: %w", err)
	}
	e.nics = &NICs{stack: n}
	e.closers.add("NICs", e.nics.Close)
	if auto {
		e.carrier = e.nics.carrier()
	}
	return nil
}

// planNICs has the planner's profile say whether NICs are of use to copy streams, and closes those that are not. What cannot be
// closed, since a NIC does not come to rest, is closed with the engine.
func (e *Engine) planNICs(ctx context.Context) {
	if e.carrier == nil || hasFigures(e.planner.Profile(), e.carrier.Path) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := e.nics.Close(ctx); err != nil {
		e.noteWithoutNIC("it is still open: " + err.Error())
	}
	e.nics, e.carrier = nil, nil
}

func (e *Engine) noteWithoutNIC(why string) { e.note(withoutNIC(why)) }

func withoutNIC(why string) string { return "copies go without a NIC: " + why }

// openStoreStream opens a stream for the store's loads or dumps.
func (e *Engine) openStoreStream() (stream.Stream, error) {
	if e.cfg.Store.GDR == GDRRequire {
		return e.nics.OpenStream()
	}
	return e.OpenStream()
}

// NICs returns those that copies travel by, under GDRAuto where the planner sends them, and why these. Empty: none.
func (e *Engine) NICs() []NICChoice {
	if e.nics == nil {
		return nil
	}
	return e.nics.Choices()
}

// NICStats returns the figures of each NIC, in the order of Engine.NICs. Safe for concurrent use, also after Close.
func (e *Engine) NICStats() []stream.NICStats {
	if e.nics == nil {
		return nil
	}
	return e.nics.Stats()
}

// Register tells the engine of memory that loads and dumps will name: the host program's KV cache, whole. NICs reach only
// what is registered, ahead of transfers, as that takes milliseconds; all of the regions are registered or none. Without
// NICs there is nothing to do. ErrExists for a region that overlaps a registered one.
func (e *Engine) Register(regions ...*mem.Region) error {
	if e.nics == nil {
		return nil
	}
	return e.nics.Register(regions...)
}

// RegisterCache tells the engine of the host program's KV cache by the addresses on the engine's device and the sizes in bytes of
// its tensors, and returns their regions, in this order: for store.Pages, and for Unregister. Everything that is wrong with the
// lists is reported at once, as mem.CacheRegions does. Without NICs the regions are all that is made.
func (e *Engine) RegisterCache(addrs, sizes []uint64) ([]*mem.Region, error) {
	regions, err := mem.CacheRegions(e.dev.Info().Index, addrs, sizes)
	if err == nil {
		err = e.Register(regions...)
	}
	if err != nil {
		return nil, fmt.Errorf("register KV cache: %w", err)
	}
	return regions, nil
}

// Unregister takes back Register and RegisterCache. The memory may be freed once it has returned nil; ErrBusy, with the context's cause, if
// transfers are under way there until ctx ends. Regions that are not registered are no error.
func (e *Engine) Unregister(ctx context.Context, regions ...*mem.Region) error {
	if e.nics == nil {
		return nil
	}
	return e.nics.Unregister(ctx, regions...)
}
