package main

// #include "kvlane.h"
import "C"

import "github.com/kvlane/kvlane/internal/capi"

//export kvlGoRemove
func kvlGoRemove(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, timeout C.int64_t, removed *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, keys, n)
		if need(&a, "removed", removed); a.err() != nil {
			return a.err()
		}
		m, err := library.Remove(capi.Handle(engine), k, int64(timeout))
		*removed = C.size_t(m)
		return err
	})
}

//export kvlGoPin
func kvlGoPin(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, unpin C.int32_t, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, keys, n)
		if a.err() != nil {
			return a.err()
		}
		return library.Pin(capi.Handle(engine), k, unpin != 0, int64(timeout))
	})
}

//export kvlGoWhy
func kvlGoWhy(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, timeout C.int64_t, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, keys, n)
		if a.err() != nil {
			return a.err()
		}
		return text(buffer, bytes, func() ([]byte, error) { return library.Why(capi.Handle(engine), k, int64(timeout)) })
	})
}
