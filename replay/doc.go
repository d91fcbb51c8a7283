// Package replay runs a real request trace through a store, as an inference engine would: it looks up each request's
// prefix, computes the misses (fills pages of a paged KV cache on the device with the bytes that the block must hold), loads the hits
// into others, verifies every loaded byte, and dumps the misses. To compute first costs one launch less than to load first, and a load
// that strays to another block's page shows when that is loaded. Layer by layer, each is computed when it is dumped.
//
// # Content
//
// Each hash id of a trace is one full block. Its bytes are a function of the id, the layer, K or V, and the offset, and
// of nothing else: a later run over the same directory verifies what an earlier one wrote. Pages are poisoned before
// they are loaded to, so that a load that does not happen shows as wrong bytes.
//
// # Failures
//
// Whatever goes wrong is in the report or in the error: blocks not loaded are computed and counted, dumps that failed are
// counted and end the replay with an error, and a copy path that the device would not give is counted and noted, as the
// bytes took another.
//
// # Concurrency
//
// Run has one goroutine that reads the trace, Config.Concurrency workers that take requests in its order, and one
// that waits for dumps to become durable, at most Config.Backlog of them behind. Each worker owns a device queue and a
// scratch area of pinned memory. Run joins all of them before it returns. With one worker a replay is deterministic.
package replay
