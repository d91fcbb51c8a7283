// Package kvlane moves the KV cache of language models between GPU memory, host memory and storage by the most direct
// path a machine has, and keeps it in a tiered block store that survives crashes and never returns a wrong byte.
//
// This package is the front door: Open wires a device, its copy streams, the tiers of a pipeline and the store over them, for a
// model's blocks. RegisterCache tells the engine where the paged KV cache is, LeasePrefix finds the stored prefix of a request, Load
// copies blocks to pages, and Dump copies pages to blocks. OpenTransfer hands requests' KV over to other processes.
// The nouns live in their own packages: mem (regions, extents, batches), device (GPUs), stream (asynchronous copies),
// block (keys, identities, the stored format), tier (places that keep blocks) and store (lookup, lease, load, dump).
//
// No package-level state, no cgo. Hardware and libraries are detected at run time; Engine.Notes says what is missing.
// docs/glossary.md has the words.
package kvlane
