package main

// #include "kvlane.h"
import "C"

import (
	"unsafe"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/capi"
)

//export kvlGoHashTokens
func kvlGoHashTokens(parent *C.uint8_t, tokens *C.int64_t, n, blockTokens C.size_t, hashes *C.uint8_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if blockTokens < 1 || blockTokens > maxElements {
			a.bad("%d tokens per block: must be positive and in range", blockTokens)
			return a.err()
		}
		var before []byte
		if parent != nil {
			before = array[byte](&a, "parent", unsafe.Pointer(parent), block.HashBytes)
		}
		all := array[int64](&a, "tokens", unsafe.Pointer(tokens), n)
		out := array[[block.HashBytes]byte](&a, "hashes", unsafe.Pointer(hashes), n/blockTokens)
		if a.err() != nil {
			return a.err()
		}
		return capi.HashTokens(out, before, all, int(blockTokens))
	})
}

//export kvlGoKeys
func kvlGoKeys(engine C.kvl_engine, group C.uint32_t, hashes *C.uint8_t, hashBytes, n C.size_t, keys *C.uint8_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if hashBytes > maxElements || n > 0 && hashBytes > maxElements/n {
			a.bad("%d hashes of %d bytes are too many", n, hashBytes)
			return a.err()
		}
		in, out := array[byte](&a, "hashes", unsafe.Pointer(hashes), n*hashBytes), keysOf(&a, keys, n)
		if a.err() != nil {
			return a.err()
		}
		return library.Keys(capi.Handle(engine), uint32(group), in, int(hashBytes), out)
	})
}

//export kvlGoLookup
func kvlGoLookup(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, there *C.uint8_t, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		in, out := keysOf(&a, keys, n), array[uint8](&a, "there", unsafe.Pointer(there), n)
		if a.err() != nil {
			return a.err()
		}
		return library.Lookup(capi.Handle(engine), in, out, int64(timeout))
	})
}

//export kvlGoLease
func kvlGoLease(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, ttl, timeout C.int64_t, lease *C.kvl_lease, found *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		in := keysOf(&a, keys, n)
		need(&a, "found", found)
		return give(&a, "lease", lease, func() (capi.Handle, error) {
			h, length, err := library.Lease(capi.Handle(engine), in, int64(ttl), int64(timeout))
			*found = C.size_t(length)
			return h, err
		})
	})
}

//export kvlGoWorth
func kvlGoWorth(lease C.kvl_lease, tokens, rest C.int64_t, worth *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "worth", worth); a.err() != nil {
			return a.err()
		}
		n, err := library.Worth(capi.Handle(lease), int64(tokens), int64(rest))
		*worth = C.size_t(n)
		return err
	})
}

//export kvlGoReportDelay
func kvlGoReportDelay(engine C.kvl_engine, seconds C.double, why **C.char) C.int32_t {
	return call(why, func() error { return library.ReportDelay(capi.Handle(engine), float64(seconds)) })
}

//export kvlGoReportComputed
func kvlGoReportComputed(engine C.kvl_engine, tokens C.int64_t, seconds C.double, why **C.char) C.int32_t {
	return call(why, func() error { return library.ReportComputed(capi.Handle(engine), int64(tokens), float64(seconds)) })
}

//export kvlGoRelease
func kvlGoRelease(lease C.kvl_lease, why **C.char) C.int32_t {
	return call(why, func() error { return library.Release(capi.Handle(lease)) })
}

// blocks returns the keys and pages of a load or dump.
func blocks(a *args, keys *C.uint8_t, pages *C.uint32_t, n C.size_t) ([]kvlane.Key, []uint32) {
	return keysOf(a, keys, n), array[uint32](a, "pages", unsafe.Pointer(pages), n)
}

//export kvlGoEvents
func kvlGoEvents(engine C.kvl_engine, events *C.kvl_event, n *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "n", n); a.err() != nil {
			return a.err()
		}
		out := array[capi.Event](&a, "events", unsafe.Pointer(events), *n)
		if a.err() != nil {
			return a.err()
		}
		taken, err := library.Events(capi.Handle(engine), out)
		*n = C.size_t(taken)
		return err
	})
}
