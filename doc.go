// Package kvlane moves the KV cache of language models between GPU memory, host memory and storage
// by the most direct path of the machine. It keeps the cache in a tiered block store that survives
// crashes and verifies every block that it returns.
//
// Open connects a device, its copy streams, the tiers of a pipeline and the store, for the blocks
// of one model. RegisterCache declares the memory of the paged KV cache. LeasePrefix finds the
// stored prefix of a request, Load copies blocks to pages, and Dump copies pages to blocks.
// OpenTransfer sends the KV of requests to other processes.
//
// The types of these calls are in separate packages: mem (regions, extents, batches), device
// (GPUs), stream (asynchronous copies), block (keys, identities, the stored format), tier (storage
// of blocks) and store (lookup, lease, load, dump).
//
// The package has no global state and no cgo. It detects hardware and libraries at run time.
// Engine.Notes lists the missing ones. docs/glossary.md defines the terms.
package kvlane
