// Package kvcache is a paged KV cache without a model, for replays and benchmarks. It fills pages
// of device memory with patterns instead of keys and values. It verifies every byte of them, on the
// device if that supports kernels.
package kvcache
