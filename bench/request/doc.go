// Package request measures requests to the store. A load is measured from the call of LeasePrefix
// until every byte is verified in the pages, a dump until its pages may be reused and until its
// blocks are durable. The package uses the root package as an inference engine does: whole requests
// or layer by layer, one or several at a time. For comparison it measures one large copy, and the
// same pages in one batch of a stream without a store.
//
// A run opens one engine for each geometry, fills its store, and measures groups. A group has all
// contenders with the same request size and number of requests. They are measured in interleaved
// rounds, so that a disturbance of the host affects all of them. Before a point is measured, its
// bytes are verified; wrong bytes fail the run.
//
// With a simulated device, only ratios of results are meaningful. With sim.Options.Still, the
// results show the CPU time and the allocations on the host.
package request
