// Package request measures requests to the store: a load from the call of LeasePrefix until every
// byte is verified in the pages, a dump until its pages may be reused and until its blocks are
// durable. It uses the root package like an engine, whole or layer by layer, with one or many
// requests at a time. References are one large copy and the same pages in one batch of a bare
// stream.
//
// A run opens one engine for each geometry, fills its store, and measures groups: all contenders of
// one request size and one number of requests, in interleaved rounds. A disturbance of the host
// then affects all of them. Before a point is measured its bytes are compared; wrong bytes fail the
// run.
//
// Of the figures of a simulated device only ratios have a meaning. With sim.Options.Still they show
// the CPU time and the allocations of the host.
package request
