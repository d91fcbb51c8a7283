package main

// #include "kvlane.h"
import "C"

import (
	"unsafe"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/capi"
)

//export kvlGoLoad
func kvlGoLoad(engine C.kvl_engine, lease C.kvl_lease, cache C.kvl_cache, keys *C.uint8_t, pages *C.uint32_t, n C.size_t,
	before *C.uint8_t, flags C.uint32_t, after *C.kvl_after, task *C.kvl_task, why **C.char,
) C.int32_t {
	return call(why, func() error {
		var a args
		k, p := blocks(&a, keys, pages, n)
		return give(&a, "task", task, func() (capi.Handle, error) {
			return library.Load(capi.Handle(engine), capi.Handle(lease), capi.Handle(cache), k, p, uint32(flags), streamOf(after), keyBefore(before)...)
		})
	})
}

// keyBefore returns the key at before as a list, or nil if before is NULL.
func keyBefore(before *C.uint8_t) []kvlane.Key {
	if before == nil {
		return nil
	}
	return []kvlane.Key{*(*kvlane.Key)(unsafe.Pointer(before))}
}

//export kvlGoDump
func kvlGoDump(engine C.kvl_engine, cache C.kvl_cache, keys *C.uint8_t, pages *C.uint32_t, n C.size_t, before *C.uint8_t, flags C.uint32_t,
	after *C.kvl_after, task *C.kvl_task, why **C.char,
) C.int32_t {
	return call(why, func() error {
		var a args
		k, p := blocks(&a, keys, pages, n)
		return give(&a, "task", task, func() (capi.Handle, error) {
			return library.Dump(capi.Handle(engine), capi.Handle(cache), k, p, uint32(flags), streamOf(after), keyBefore(before)...)
		})
	})
}

//export kvlGoLoadSeconds
func kvlGoLoadSeconds(task C.kvl_task, seconds *C.double, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "seconds", seconds); a.err() != nil {
			return a.err()
		}
		s, err := library.LoadSeconds(capi.Handle(task))
		*seconds = C.double(s)
		return err
	})
}

//export kvlGoSubmitLayer
func kvlGoSubmitLayer(task C.kvl_task, layer C.uint32_t, after *C.kvl_after, why **C.char) C.int32_t {
	return call(why, func() error { return library.SubmitLayer(capi.Handle(task), uint32(layer), streamOf(after)) })
}

// streamOf returns the stream to wait for, or nil if after is NULL.
func streamOf(after *C.kvl_after) *uint64 {
	if after == nil {
		return nil
	}
	s := uint64(after.stream)
	return &s
}

//export kvlGoPrefetch
func kvlGoPrefetch(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, task *C.kvl_task, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, keys, n)
		return give(&a, "task", task, func() (capi.Handle, error) { return library.Prefetch(capi.Handle(engine), k) })
	})
}

//export kvlGoWait
func kvlGoWait(task C.kvl_task, what C.int32_t, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.Wait(capi.Handle(task), int32(what), int64(timeout)) })
}

//export kvlGoResults
func kvlGoResults(task C.kvl_task, results *C.kvl_result, n C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		out := array[capi.Result](&a, "results", unsafe.Pointer(results), n)
		if a.err() != nil {
			return a.err()
		}
		return library.Results(capi.Handle(task), out)
	})
}

//export kvlGoLeftOut
func kvlGoLeftOut(task C.kvl_task, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.LeftOut(capi.Handle(task)) })
	})
}

//export kvlGoCancel
func kvlGoCancel(task C.kvl_task, why **C.char) C.int32_t {
	return call(why, func() error { return library.Cancel(capi.Handle(task)) })
}

//export kvlGoFree
func kvlGoFree(task C.kvl_task, why **C.char) C.int32_t {
	return call(why, func() error { return library.Free(capi.Handle(task)) })
}

//export kvlGoStreamWait
func kvlGoStreamWait(engine C.kvl_engine, stream C.uint64_t, task C.kvl_task, what C.int32_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return library.StreamWait(capi.Handle(engine), uint64(stream), capi.Handle(task), int32(what))
	})
}
