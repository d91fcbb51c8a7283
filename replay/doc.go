// Package replay runs a request trace through a store, as an inference engine would.
//
// A request takes one page of a paged KV cache for each of its blocks. The replay leases the prefix
// that the store has, computes the other blocks (it fills their pages with their content), loads
// the prefix, verifies every loaded byte, and dumps the computed blocks. Computing first saves a
// launch. It also exposes a load that writes to the page of another block: the dump stores the
// wrong bytes, and the next load of that block reports them. Layerwise replays compute each layer
// just before its dump.
//
// # Content
//
// Each hash id of a trace is one full block. Its bytes depend only on the id, the layer, K or V,
// and the offset. A later run over the same directory therefore verifies the blocks of earlier
// ones. Pages are poisoned before a load, so that a missing load shows as wrong bytes.
//
// # Failures
//
// Every failure is in the report or in the error. Blocks that fail to load are computed and
// counted. Failed dumps are counted, and Run returns an error in the end. If the device refuses a
// copy path, the bytes take another one; the report counts that and has a note.
//
// # Concurrency
//
// One goroutine reads the trace. Config.Concurrency workers take requests in the trace's order.
// Another goroutine waits for dumps to become durable; Config.Backlog bounds its queue. Each worker
// owns a device queue and a scratch area of pinned memory. All goroutines end before Run returns.
// With one worker a replay is deterministic.
package replay
