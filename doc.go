// Package kvlane moves the KV cache of language models between GPU memory, host memory and storage by the most direct
// path a machine has, and keeps it in a tiered block store that survives crashes and never returns a wrong byte.
//
// This package is the front door: Open wires a device, its copy streams, the tiers of a pipeline and the store over them, for a
// model's blocks. RegisterCache tells the engine where the paged KV cache lies, LeasePrefix finds what is there of a request, and Load
// and Dump copy blocks to pages and back. OpenTransfer hands requests' KV over to other processes.
// The nouns live in their own packages: mem (regions, extents, batches), device (GPUs), stream (asynchronous copies),
// block (keys, identities, the stored format), tier (places that keep blocks) and store (lookup, lease, load, dump).
//
// No package-level state, no cgo: what the machine has is found at run time, and what it lacks is said in Engine.Notes.
package kvlane
