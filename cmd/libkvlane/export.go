package main

// #include <stdlib.h>
// #include "kvlane.h"
// void started(int32_t *table, size_t n);
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
)

// library maps handles to objects. It is a global variable because a process loads the library
// once.
var library = start()

// start passes the table of file locks to the C code, which closes the locked files in children of
// fork(). It returns the library.
func start() *capi.Library {
	locks := dirfs.Locked() // a global variable, so C may keep its address
	C.started((*C.int32_t)(unsafe.Pointer(&locks[0])), C.size_t(len(locks)))
	return capi.New()
}

// call calls f and returns its status. If f fails, call sets why to the text of the error. The C
// code frees the text.
func call(why **C.char, f func() error) C.int32_t {
	err := capi.Guard(f)
	if err != nil {
		*why = C.CString(capi.Text(err))
	}
	return C.int32_t(capi.StatusOf(err))
}

// args collects the errors of a call's arguments.
type args struct{ errs []error }

func (a *args) err() error { return errors.Join(a.errs...) }

func (a *args) bad(format string, v ...any) {
	a.errs = append(a.errs, fmt.Errorf(format+": %w", append(v, errdefs.ErrInvalid)...))
}

// need adds an error if p is NULL.
func need[T any](a *args, name string, p *T) {
	if p == nil {
		a.bad("%s is NULL", name)
	}
}

// maxElements is the maximum length of arrays in a call, so that their lengths in bytes do not
// overflow.
const maxElements = 1 << 32

// array returns the n elements at p in C memory. If p is NULL or n is too large, it adds an error
// and returns nil.
func array[T any](a *args, name string, p unsafe.Pointer, n C.size_t) []T {
	switch {
	case n == 0:
		return nil
	case p == nil:
		a.bad("%s is NULL, must have %d elements", name, n)
		return nil
	case n > maxElements:
		a.bad("%s has %d elements, which is more than %d", name, n, int64(maxElements))
		return nil
	}
	return unsafe.Slice((*T)(p), n)
}

func keysOf(a *args, keys *C.uint8_t, n C.size_t) []kvlane.Key {
	return array[kvlane.Key](a, "keys", unsafe.Pointer(keys), n)
}

// give calls make and writes the resulting handle to out.
func give(a *args, name string, out *C.uint64_t, make func() (capi.Handle, error)) error {
	if need(a, name, out); a.err() != nil {
		return a.err()
	}
	h, err := make()
	*out = C.uint64_t(h)
	return err
}

//export kvlGoOpen
func kvlGoOpen(config *C.char, engine *C.kvl_engine, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		need(&a, "config", config)
		useEnvironment()
		return give(&a, "engine", engine, func() (capi.Handle, error) { return library.Open([]byte(C.GoString(config))) })
	})
}

//export kvlGoReadConfig
func kvlGoReadConfig(config *C.char, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "config", config); a.err() != nil {
			return a.err()
		}
		useEnvironment()
		return text(buffer, bytes, func() ([]byte, error) { return capi.ReadConfig([]byte(C.GoString(config))) })
	})
}

//export kvlGoClose
func kvlGoClose(engine C.kvl_engine, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.Close(capi.Handle(engine), int64(timeout)) })
}

//export kvlGoRegisterCache
func kvlGoRegisterCache(engine C.kvl_engine, groups *C.kvl_group_memory, n C.size_t, cache *C.kvl_cache, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		var memory []kvlane.CacheMemory
		for _, g := range array[C.kvl_group_memory](&a, "groups", unsafe.Pointer(groups), n) {
			m := kvlane.CacheMemory{Pages: int(g.n_pages), PageBytes: int64(g.page_bytes), Stride: int64(g.stride)}
			m.Planes = append(m.Planes, array[mem.DevAddr](&a, "planes", unsafe.Pointer(g.planes), g.n_planes)...)
			memory = append(memory, m)
		}
		return give(&a, "cache", cache, func() (capi.Handle, error) {
			return library.RegisterCache(capi.Handle(engine), memory)
		})
	})
}

//export kvlGoCloseCache
func kvlGoCloseCache(cache C.kvl_cache, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.CloseCache(capi.Handle(cache), int64(timeout)) })
}

//export kvlGoReportSlowdown
func kvlGoReportSlowdown(engine C.kvl_engine, percent C.double, why **C.char) C.int32_t {
	return call(why, func() error { return library.ReportSlowdown(capi.Handle(engine), float64(percent)) })
}

//export kvlGoStats
func kvlGoStats(engine C.kvl_engine, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.Stats(capi.Handle(engine)) })
	})
}

//export kvlGoMetrics
func kvlGoMetrics(of C.uint64_t, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.Metrics(capi.Handle(of)) })
	})
}

//export kvlGoNotes
func kvlGoNotes(engine C.kvl_engine, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.Notes(capi.Handle(engine)) })
	})
}

// text writes the result of make and a zero byte to a buffer, and sets bytes to their total number.
// If the buffer is too small, it writes nothing to it and returns ErrNoSpace.
func text(buffer *C.char, bytes *C.size_t, make func() ([]byte, error)) error {
	var a args
	if need(&a, "bytes", bytes); a.err() != nil {
		return a.err()
	}
	room := array[byte](&a, "buffer", unsafe.Pointer(buffer), *bytes)
	if a.err() != nil {
		return a.err()
	}
	b, err := make()
	if err != nil {
		return err
	}
	*bytes = C.size_t(len(b) + 1)
	if len(room) <= len(b) {
		return fmt.Errorf("a buffer of %d bytes for %d: %w", len(room), len(b)+1, errdefs.ErrNoSpace)
	}
	room[copy(room, b)] = 0
	return nil
}
