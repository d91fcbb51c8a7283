// Package request measures what a request feels: from the call of LeasePrefix until every byte is verified in pages, and of a dump
// until its pages may be reused and until its blocks are durable. It uses the root package as an engine does, whole or layer by layer, one
// or many requests at a time, and sets what it finds beside one large copy and beside the same pages in one batch of a bare stream.
//
// A run opens one engine a geometry, fills its store, and measures groups: all contenders of one request size and one number of
// requests at a time, by turns, so that what else keeps the host busy for a while hits them all. Every point's bytes are compared
// with what they must be before it is measured; wrong ones fail the run.
//
// With Options.ModelLayers a Model computes behind loads by layers, on a stream that waits on the device for one after the other.
//
// Figures of a simulated device mean nothing but their ratios. Those of one that stands still (sim.Options.Still) say what the host
// itself takes, in CPU time and allocations.
package request
