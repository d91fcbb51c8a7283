package kvlane

import (
	"fmt"

	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// OpenStream opens a copy stream on the engine's device, with the configuration of the store's load
// stream. The caller closes it before the engine.
//
// Under GDRRequire the store's streams use only NICs, which cannot wait for events of the device.
// OpenStream still returns a copy stream, and the host waits for the dependencies of dumps. To let
// a dump wait for other work, add a mem.Dependency to store.DumpOptions.After whose Done is closed
// when the work completes, such as a ticket of another stream.
//
// Errors: ErrClosed after Engine.Close was called.
func (e *Engine) OpenStream() (stream.EventStream, error) {
	if err := e.usable(); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	loads, _ := e.cfg.Stream.Goals()
	return e.openCopyStream(e.carrier, loads)
}

// AdoptStream wraps a stream of the host program, given by its native handle, a CUstream or
// cudaStream_t. Zero is the default stream. It needs Config.HostStreams. The program still owns the
// stream, and must not destroy it while the HostStream is in use. A HostStream needs no release.
// Adopt each stream only once, because the number of streams that wait at the same time is limited
// (HostStream.WaitLoad).
//
// Errors: ErrNotSupported if the stream is capturing a graph, ErrInvalid if it belongs to another
// device or context or is the default stream of each thread. See device.StreamAdopter.
func (e *Engine) AdoptStream(handle uintptr) (*HostStream, error) { return e.hosts.Adopt(handle) }

// openCopyStream opens a copy stream for a goal. nic, if not nil, lets it copy by NIC.
func (e *Engine) openCopyStream(nic *streamcopy.Carrier, goal plan.Goal) (stream.EventStream, error) {
	c := &e.cfg.Stream
	o := streamcopy.Options{Path: c.Path, Policy: c.Policy, StagingBytes: c.StagingBytes, NIC: nic, Prepare: e.cfg.HostStreams}
	o.Policy.Goal = goal
	if o.StagingBytes == 0 && o.Policy.Goal.Weighs() { // no batch of the store exceeds the cache
		o.StagingBytes = min(streamcopy.BesideStagingBytes, max(streamcopy.DefaultStagingBytes, e.cfg.Store.slotBytes(e.groups.formats)))
	}
	if e.planner != nil { // there is no planner while software NICs are measured
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

// openStoreStream opens a stream of the store for a goal. Under GDRRequire it uses only NICs.
func (e *Engine) openStoreStream(goal plan.Goal) (stream.Stream, error) {
	if e.cfg.Store.GDR == GDRRequire {
		return e.nics.OpenStream()
	}
	return e.openCopyStream(e.carrier, goal)
}
