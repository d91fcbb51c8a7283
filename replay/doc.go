// Package replay replays a request trace on a store, with the operations of an inference engine.
//
// A request takes one page of a paged KV cache for each of its blocks. The replay leases the prefix
// that the store has, computes the other blocks by filling their pages with patterns, loads the
// prefix, verifies every loaded byte, and dumps the computed blocks. Because blocks are computed
// before the load, a load that writes to a wrong page is detected: the dump stores the wrong bytes,
// and the next load of that block reports them. Layerwise replays compute each layer just before
// its dump.
//
// # Content
//
// Each hash id of a trace is one full block. Its bytes depend only on the id, the layer, K or V,
// and the offset. Therefore a later replay on the same directory verifies the blocks of earlier
// ones. Pages are filled with a different pattern before a load, so that a missing load is detected
// as wrong bytes.
//
// # Failures
//
// Every failure is in the report or in the error. Blocks that fail to load are computed and
// counted. Failed dumps are counted, and Run returns an error in the end. If the device refuses a
// copy path, another path is used; the report has the number of such cases and a note.
//
// # Concurrency
//
// One goroutine reads the trace. Config.Concurrency workers take requests in the trace's order.
// Another goroutine waits for dumps to become durable; Config.Backlog limits its queue. Each worker
// has its own device queue and pinned memory. All goroutines end before Run returns. With one
// worker a replay is deterministic.
package replay
