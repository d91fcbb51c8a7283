// Package handover sends the paged KV cache of a request from the prefill process to the decode
// process. It sends each layer when that is computed, into pages that the receiver has reserved.
//
// A Sender has the planes of each layer on both sides. For each request the receiver chooses pages
// and sends their numbers to the sender together with the request. Sender.Begin pairs them with the
// sender's pages. Request.Layer sends a layer once its dependencies are resolved; it waits while
// Options.Depth layers are in progress. The receiver's Receiver reports each layer that has
// arrived, sometimes out of order, each complete request, and each failed request. The pages of a
// failed request are undefined.
//
// A sender that dies reports nothing. The receiver therefore needs a time limit for a request.
// Before it reuses the request's pages, it must fence the sender's transfers: close the segment, or
// unregister the memory.
package handover
