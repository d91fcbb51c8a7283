// Package handover sends the paged KV cache of a request from the process that computes its prompt to the one that decodes: layer by layer,
// as they are computed, into pages that the receiver has set aside.
//
// A Sender knows where both sides have the planes of each layer. For each request the receiver chooses pages and tells the sender, by
// whatever way requests come; Sender.Begin pairs them with the sender's own. Request.Layer hands a layer over once what it comes after has
// resolved, and waits while as many layers as may be are under way. The receiver's Receiver tells of each layer that has arrived, now and then
// of a later one before an earlier one, of the request when all have, and of requests that failed: what their pages hold is then undefined.
//
// A sender that dies says nothing more: who waits for a request needs a time after which it gives up, and must not use the request's pages
// for anything else before the sender's transfers are fenced: close the segment, or unregister the memory.
package handover
