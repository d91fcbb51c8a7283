package kvlane

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// GDR says whether the store's loads and dumps travel by RDMA NICs that are connected to themselves (GPUDirect RDMA).
type GDR string

// The choices.
const (
	// GDROff does not use a NIC.
	GDROff GDR = "off"
	// GDRAuto adds the NICs that Config.RDMA selects to the paths of the engine's copy streams, where they can be used: they are
	// measured with the GPU's own paths (StreamConfig.Calibration), and the planner takes them for each batch that they are
	// the fastest for. Engine.Notes says why they cannot be used. NICs that fail a batch, or take none, are not used again;
	// store.Stats counts that and says why. It never takes a NIC in software. The host program has to name its memory to
	// Engine.RegisterCache or Engine.Register: what is not registered travels by the other paths.
	GDRAuto GDR = "auto"
	// GDRRequire uses NICs, and is an error where that is not possible. With gdr.Soft that is a NIC in software.
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

// validateGDR reports what of the configuration's parts does not go together.
func (c *Config) validateGDR() error {
	var errs []error
	if c.Store.GDR != "" {
		_, err := ParseGDR(string(c.Store.GDR))
		errs = append(errs, err)
	}
	if p := c.Stream.Path; p != stream.PathNone && c.Store.GDR == GDRRequire && c.RDMA.Provider != gdr.Soft {
		errs = append(errs, fmt.Errorf("path %s is forced, and gdr requires a NIC: %w", p, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// wantsNICs reports whether NICs of the machine are to be used, if they can be.
func (c *Config) wantsNICs() bool {
	return (c.Store.GDR == GDRAuto || c.Store.GDR == GDRRequire) && c.RDMA.Provider != gdr.Soft
}

// openNICs opens the NICs that are asked for, or says why the engine goes on without.
func (e *Engine) openNICs() error {
	c := &e.cfg
	auto := c.Store.GDR == GDRAuto
	switch {
	case !auto && c.Store.GDR != GDRRequire:
		return nil
	case auto && c.RDMA.Provider == gdr.Soft && !e.softUnderAuto:
		e.noteWithoutNIC("gdr is auto, which never takes a NIC in software")
		return nil
	case auto && c.Stream.Path != stream.PathNone: // there is nothing to plan
		why := fmt.Sprintf("path %s is forced", c.Stream.Path)
		if c.Stream.Path == streamcopy.OnlyPath(e.dev) {
			why = fmt.Sprintf("path %s is the only one of this device", c.Stream.Path)
		}
		e.noteWithoutNIC(why)
		return nil
	}
	// Copy streams that move the bytes of NICs in software do not take these in turn.
	n, err := gdr.Open(e.dev, c.RDMA, func() (stream.Stream, error) { return e.openCopyStream(nil, plan.Throughput) })
	switch {
	case err == nil:
	case auto:
		e.noteWithoutNIC(err.Error())
		return nil
	default:
		return fmt.Errorf("gdr requires a NIC: %w", err)
	}
	e.nics = n
	e.closers.Add("NICs", n.Close)
	if auto {
		e.carrier = n.Carrier()
	}
	return nil
}

// planNICs has the planner's profile say whether NICs are of use to copy streams, and closes those that are not. What cannot be
// closed, since a NIC does not come to rest, is closed with the engine.
func (e *Engine) planNICs(ctx context.Context) {
	if e.carrier == nil || profile.HasFigures(e.planner.Profile(), e.carrier.Path) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwind.Timeout)
	defer cancel()
	if err := e.nics.Close(ctx); err != nil {
		e.noteWithoutNIC("it is still open: " + err.Error())
	}
	e.nics, e.carrier = nil, nil
}

func (e *Engine) noteWithoutNIC(why string) { e.note("copies go without a NIC: " + why) }

// openLoads and openDumps open the store's streams.
func (e *Engine) openLoads() (stream.Stream, error) {
	loads, _ := e.cfg.Stream.Goals()
	return e.openStoreStream(loads)
}

func (e *Engine) openDumps() (stream.Stream, error) {
	_, dumps := e.cfg.Stream.Goals()
	return e.openStoreStream(dumps)
}

// openStoreStream opens a stream for the store, for a goal.
func (e *Engine) openStoreStream(goal plan.Goal) (stream.Stream, error) {
	if e.cfg.Store.GDR == GDRRequire {
		return e.nics.OpenStream()
	}
	return e.openCopyStream(e.carrier, goal)
}

// NICs returns those that copies travel by, under GDRAuto where the planner sends them, and why these. Empty: none.
func (e *Engine) NICs() []gdr.Choice {
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

// Register tells the engine of memory that streams of OpenStream or loads and dumps of Engine.Store will name; RegisterCache does that
// for a KV cache. NICs reach only what is registered, ahead of transfers, as that takes milliseconds; all of the regions are
// registered or none. Without NICs there is nothing to do. ErrInvalid, ErrExists for a region that overlaps a registered one. What NICs refuse is an error
// with GDRRequire; with GDRAuto none of the regions is theirs then, and Engine.Notes says why. NICStats counts it. Where the error, or the note,
// says that it could not be undone, a NIC has a part until Unregister has returned nil.
//
// ErrClosed once Close has been called.
func (e *Engine) Register(regions ...*mem.Region) error {
	if err := e.usable(); err != nil || e.nics == nil {
		return err
	}
	err := e.nics.Register(regions...)
	if err == nil || e.carrier == nil || !gdr.Refused(err) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusals, e.refusal = e.refusals+1, err
	return nil
}

// Unregister takes back Register. The memory may be freed once it has returned nil; ErrBusy, with the context's cause, if
// transfers are under way there until ctx ends. Regions that are not registered are no error.
func (e *Engine) Unregister(ctx context.Context, regions ...*mem.Region) error {
	if e.nics == nil {
		return nil
	}
	return e.nics.Unregister(ctx, regions...)
}
