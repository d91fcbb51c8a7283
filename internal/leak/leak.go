// Package leak counts resources of the process outside the Go heap, so that test binaries can
// report leaks. The owner of a resource calls Add with a positive number on allocation, and with
// the negated number on release.
//
// All functions are safe for concurrent use.
package leak

import (
	"fmt"
	"sync/atomic"
)

// Kind is a kind of resource.
type Kind uint8

// Kinds of resources. Kinds with Bytes in their names count bytes, others count objects.
const (
	PinnedBytes     Kind = iota // page-locked host memory allocated by a device
	RegisteredBytes             // host memory registered by a device
	DeviceBytes                 // device memory
	HostBytes                   // host memory mapped outside the Go heap
	ImportedBytes               // mapped device memory of other processes
	Queues                      // device queues
	Events                      // device events
	Handles                     // files, loaded libraries, contexts
	kinds
)

var names = [kinds]string{
	PinnedBytes:     "pinned bytes",
	RegisteredBytes: "registered bytes",
	DeviceBytes:     "device bytes",
	HostBytes:       "host bytes",
	ImportedBytes:   "imported bytes",
	Queues:          "queues",
	Events:          "events",
	Handles:         "handles",
}

var live [kinds]atomic.Int64

// String returns the name of the kind, as in Live.
func (k Kind) String() string {
	if k < kinds {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Add adds n to the count of kind. n is negative on release.
func Add(kind Kind, n int64) { live[kind].Add(n) }

// Live returns the kinds whose count is not zero. A negative count means a double release.
func Live() map[string]int64 {
	m := make(map[string]int64)
	for k := range kinds {
		if n := live[k].Load(); n != 0 {
			m[k.String()] = n
		}
	}
	return m
}
