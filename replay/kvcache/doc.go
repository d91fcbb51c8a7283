// Package kvcache is the paged KV cache of an engine that computes nothing: pages in device memory, the patterns that they are filled
// with in place of keys and values, and the check of every byte of them, on the device where it runs kernels. Replays and
// benchmarks load to it and dump from it.
package kvcache
