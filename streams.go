package kvlane

import (
	"fmt"

	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

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

// AdoptStream returns the program's stream with this native handle, a CUstream or cudaStream_t.
// Zero is the default stream. It needs Config.HostStreams. The program keeps the stream, and must
// not destroy it while it uses the HostStream. There is nothing to release. Adopt each stream once:
// few streams may wait at the same time (HostStream.WaitLoad).
//
// Errors: ErrNotSupported if the stream is capturing a graph, ErrInvalid if it belongs to another
// device or context or is the default stream of each thread. See device.StreamAdopter.
func (e *Engine) AdoptStream(handle uintptr) (*HostStream, error) { return e.hosts.Adopt(handle) }

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

// openLoads opens the store's stream for loads.
func (e *Engine) openLoads() (stream.Stream, error) {
	loads, _ := e.cfg.Stream.Goals()
	return e.openStoreStream(loads)
}

func (e *Engine) openDumps() (stream.Stream, error) {
	_, dumps := e.cfg.Stream.Goals()
	return e.openStoreStream(dumps)
}

// openStoreStream opens a stream of the store for a goal.
func (e *Engine) openStoreStream(goal plan.Goal) (stream.Stream, error) {
	if e.cfg.Store.GDR == GDRRequire {
		return e.nics.OpenStream()
	}
	return e.openCopyStream(e.carrier, goal)
}
