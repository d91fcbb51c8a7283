package main

// #include "kvlane.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/kvlane/kvlane/internal/capi"
)

//export kvlGoRegisterMemory
func kvlGoRegisterMemory(engine C.kvl_engine, address C.uint64_t, bytes C.uint64_t, kind C.uint32_t, memory *C.kvl_memory, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if address == 0 || bytes == 0 || bytes > math.MaxInt64 || kind > C.KVL_DEVICE {
			a.bad("%d bytes at %#x, of kind %d: not memory", bytes, address, kind)
		}
		return give(&a, "memory", memory, func() (capi.Handle, error) {
			if kind == C.KVL_DEVICE {
				return library.RegisterDevice(capi.Handle(engine), uint64(address), int64(bytes))
			}
			p := *(*unsafe.Pointer)(unsafe.Pointer(&address)) // an address of C memory
			return library.RegisterHost(capi.Handle(engine), unsafe.Slice((*byte)(p), uint64(bytes)))
		})
	})
}

//export kvlGoUnregisterMemory
func kvlGoUnregisterMemory(memory C.kvl_memory, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.UnregisterMemory(capi.Handle(memory), int64(timeout)) })
}

//export kvlGoOpenStream
func kvlGoOpenStream(engine C.kvl_engine, stream *C.kvl_stream, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		return give(&a, "stream", stream, func() (capi.Handle, error) { return library.OpenStream(capi.Handle(engine)) })
	})
}

//export kvlGoCloseStream
func kvlGoCloseStream(stream C.kvl_stream, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.CloseStream(capi.Handle(stream), int64(timeout)) })
}

//export kvlGoCopy
func kvlGoCopy(stream C.kvl_stream, to C.kvl_memory, toAt *C.uint64_t, from C.kvl_memory, fromAt, bytes *C.uint64_t, n C.size_t,
	after *C.kvl_after, timeout C.int64_t, task *C.kvl_task, why **C.char,
) C.int32_t {
	return call(why, func() error {
		var a args
		c := capi.Copies{
			To: capi.Handle(to), ToAt: array[uint64](&a, "to_at", unsafe.Pointer(toAt), n),
			From: capi.Handle(from), FromAt: array[uint64](&a, "from_at", unsafe.Pointer(fromAt), n),
			Size: array[uint64](&a, "bytes", unsafe.Pointer(bytes), n),
		}
		return give(&a, "task", task, func() (capi.Handle, error) {
			return library.Copy(capi.Handle(stream), &c, streamOf(after), int64(timeout))
		})
	})
}
