// Package leak counts what the process holds outside the Go heap, so that a test binary can say at its end what was not
// given back. Whoever makes such a thing calls Add with a positive number, and whoever frees it with the same number
// negative; nothing else in kvlane keeps package-level state.
//
// All functions are safe for concurrent use.
package leak

import (
	"fmt"
	"sync/atomic"
)

// Kind says what is counted.
type Kind uint8

// The kinds. Those named Bytes count bytes, the others objects.
const (
	PinnedBytes     Kind = iota // page-locked host memory that a device allocated
	RegisteredBytes             // host memory that a device registered
	DeviceBytes                 // device memory
	HostBytes                   // host memory mapped outside the Go heap
	ImportedBytes               // device memory of other processes, mapped here
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

// String returns the kind's name, as Live has it.
func (k Kind) String() string {
	if k < kinds {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Add adds n, which is negative when something is given back, to what is held of kind.
func Add(kind Kind, n int64) { live[kind].Add(n) }

// Live returns the kinds of which the process holds another amount than zero. A negative amount is a double release.
func Live() map[string]int64 {
	m := make(map[string]int64)
	for k := range kinds {
		if n := live[k].Load(); n != 0 {
			m[k.String()] = n
		}
	}
	return m
}
