// Package kvcache is the paged KV cache of an engine without a model. It fills pages of device
// memory with patterns in place of keys and values, and verifies every byte of them, on the device
// if it runs kernels. Replays and benchmarks load to it and dump from it.
package kvcache
