// Package handover sends the paged KV cache of a request from the prefill process to the decode
// process. Each layer is sent as soon as it is computed, into pages that the receiver has reserved.
//
// A Sender knows the planes of each layer in both processes. For each request the receiver reserves
// pages and sends their numbers to the sender along with the request. Sender.Begin takes pairs of
// the sender's and the receiver's pages. Request.Layer sends a layer once its dependencies are
// resolved; it waits while Options.Depth layers are in progress. The receiver's Receiver reports
// each layer that has arrived, sometimes out of order, each complete request, and each failed
// request. The pages of a failed request are undefined.
//
// A sender that dies reports nothing, so the receiver needs a time limit for a request. Before it
// reuses the request's pages, it must fence the sender's transfers: close the segment, or
// unregister the memory.
package handover
