package kvlane

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// openNICs opens the configured NICs. If GDRAuto cannot use them, it adds a note with the reason.
func (e *Engine) openNICs(ctx context.Context) error {
	c := &e.cfg
	auto := c.Store.GDR == GDRAuto
	switch {
	case !auto && c.Store.GDR != GDRRequire:
		return nil
	case auto && c.RDMA.Provider == gdr.Soft && !autonic.Soft(ctx):
		e.noteWithoutNIC("gdr is auto, which never uses a NIC in software")
		return nil
	case auto && c.Stream.Path != stream.PathNone: // there is no choice of paths
		why := fmt.Sprintf("path %s is forced", c.Stream.Path)
		if c.Stream.Path == streamcopy.OnlyPath(e.dev) {
			why = fmt.Sprintf("path %s is the only one of this device", c.Stream.Path)
		}
		e.noteWithoutNIC(why)
		return nil
	}
	// The copy streams that move the bytes of software NICs do not use NICs.
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

// planNICs closes the NICs if the planner's profile has no measurements of them. If a NIC does not
// become idle in time, Engine.Close closes it.
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

func (e *Engine) noteWithoutNIC(why string) { e.note("copies do not use a NIC: " + why) }

// Register registers memory with the NICs, for streams of OpenStream and for loads and dumps of
// Engine.Store. RegisterCache does so for a KV cache. NICs access registered memory only.
// Registering takes milliseconds, so do it before transfers. All regions are registered, or none.
// Without NICs Register does nothing.
//
// Errors: ErrInvalid, ErrExists for a region that overlaps a registered one, ErrClosed after Close
// was called. If NICs refuse memory, GDRRequire returns an error. GDRAuto then registers none of
// the regions, Engine.Notes has the reason, and NICStats counts it. If the error, or the note,
// reports that a registration could not be undone, a NIC can access part of the memory until
// Unregister returns nil.
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

// Unregister undoes Register. The memory may be freed after Unregister has returned nil. If
// transfers still access the memory when ctx ends, it returns ErrBusy with the cause of ctx.
// Regions that are not registered are ignored.
func (e *Engine) Unregister(ctx context.Context, regions ...*mem.Region) error {
	if e.nics == nil {
		return nil
	}
	return e.nics.Unregister(ctx, regions...)
}
