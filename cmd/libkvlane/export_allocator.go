package main

// #include "kvlane.h"
import "C"

//export kvlGoOpenAllocator
func kvlGoOpenAllocator(driver *C.char, device C.int32_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "driver", driver); a.err() != nil {
			return a.err()
		}
		return library.OpenAllocator(C.GoString(driver), int(device))
	})
}

//export kvlGoAllocate
func kvlGoAllocate(device C.int, bytes C.int64_t, at *C.uint64_t, why **C.char) C.int32_t {
	return call(why, func() error {
		p, err := library.Allocate(int(device), int64(bytes))
		*at = C.uint64_t(p)
		return err
	})
}

//export kvlGoDeallocate
func kvlGoDeallocate(device C.int, at, stream C.uint64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.Deallocate(int(device), uint64(at), uint64(stream)) })
}

//export kvlGoAllocatorStats
func kvlGoAllocatorStats(device C.int32_t, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.AllocatorStats(int(device)) })
	})
}
