package main

// #include "kvlane.h"
import "C"

import (
	"unsafe"

	"github.com/kvlane/kvlane/internal/capi"
)

// names converts a list of blocks. It adds an error for each invalid argument.
func names(a *args, blocks *C.kvl_blocks) *capi.Names {
	if need(a, "blocks", blocks); blocks == nil {
		return nil
	}
	n := &capi.Names{HashBytes: int(blocks.hash_bytes), N: int(blocks.n)}
	if blocks.hash_bytes > maxElements || blocks.n > 0 && blocks.hash_bytes > maxElements/blocks.n {
		a.bad("%d hashes of %d bytes are too many", blocks.n, blocks.hash_bytes)
		return nil
	}
	n.Hashes = array[byte](a, "hashes", unsafe.Pointer(blocks.hashes), blocks.n*blocks.hash_bytes)
	if blocks.groups != nil {
		n.Groups = array[uint32](a, "groups", unsafe.Pointer(blocks.groups), blocks.n)
	}
	return n
}

//export kvlGoOpenManager
func kvlGoOpenManager(config *C.char, manager *C.kvl_manager, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		need(&a, "config", config)
		useEnvironment()
		return give(&a, "manager", manager, func() (capi.Handle, error) { return library.OpenManager([]byte(C.GoString(config))) })
	})
}

//export kvlGoCloseManager
func kvlGoCloseManager(manager C.kvl_manager, timeout C.int64_t, why **C.char) C.int32_t {
	return call(why, func() error { return library.CloseManager(capi.Handle(manager), int64(timeout)) })
}

//export kvlGoManagerLookup
func kvlGoManagerLookup(manager C.kvl_manager, blocks *C.kvl_blocks, states *C.uint8_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n := names(&a, blocks)
		if a.err() != nil {
			return a.err()
		}
		out := array[uint8](&a, "states", unsafe.Pointer(states), blocks.n)
		if a.err() != nil {
			return a.err()
		}
		return library.ManagerLookup(capi.Handle(manager), n, out)
	})
}

//export kvlGoManagerWorth
func kvlGoManagerWorth(manager C.kvl_manager, blocks *C.kvl_blocks, states *C.uint8_t, tokens, rest C.int64_t, worth *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		need(&a, "worth", worth)
		n := names(&a, blocks)
		if a.err() != nil {
			return a.err()
		}
		known := array[uint8](&a, "states", unsafe.Pointer(states), blocks.n)
		if a.err() != nil {
			return a.err()
		}
		found, err := library.ManagerWorth(capi.Handle(manager), n, known, int64(tokens), int64(rest))
		*worth = C.size_t(found)
		return err
	})
}

//export kvlGoManagerComputed
func kvlGoManagerComputed(manager C.kvl_manager, tokens C.int64_t, seconds C.double, why **C.char) C.int32_t {
	return call(why, func() error { return library.ManagerComputed(capi.Handle(manager), int64(tokens), float64(seconds)) })
}

//export kvlGoManagerLoad
func kvlGoManagerLoad(manager C.kvl_manager, blocks *C.kvl_blocks, job *C.kvl_job, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n := names(&a, blocks)
		return give(&a, "job", job, func() (capi.Handle, error) { return library.ManagerLoad(capi.Handle(manager), n) })
	})
}

//export kvlGoManagerStore
func kvlGoManagerStore(manager C.kvl_manager, blocks, before *C.kvl_blocks, chosen *C.uint8_t, job *C.kvl_job, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n := names(&a, blocks)
		var earlier []*capi.Names
		if before != nil {
			earlier = append(earlier, names(&a, before))
		}
		if a.err() != nil {
			return a.err()
		}
		out := array[uint8](&a, "chosen", unsafe.Pointer(chosen), blocks.n)
		return give(&a, "job", job, func() (capi.Handle, error) { return library.ManagerStore(capi.Handle(manager), n, out, earlier...) })
	})
}

//export kvlGoManagerForget
func kvlGoManagerForget(manager C.kvl_manager, blocks *C.kvl_blocks, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n := names(&a, blocks)
		if a.err() != nil {
			return a.err()
		}
		return library.ManagerForget(capi.Handle(manager), n)
	})
}

//export kvlGoManagerTouch
func kvlGoManagerTouch(manager C.kvl_manager, blocks *C.kvl_blocks, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n := names(&a, blocks)
		if a.err() != nil {
			return a.err()
		}
		return library.ManagerTouch(capi.Handle(manager), n)
	})
}

//export kvlGoManagerSetAnchors
func kvlGoManagerSetAnchors(manager C.kvl_manager, blocks, anchors *C.kvl_blocks, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		n, of := names(&a, blocks), names(&a, anchors)
		if a.err() != nil {
			return a.err()
		}
		return library.ManagerSetAnchors(capi.Handle(manager), n, of)
	})
}

//export kvlGoManagerReset
func kvlGoManagerReset(manager C.kvl_manager, why **C.char) C.int32_t {
	return call(why, func() error { return library.ManagerReset(capi.Handle(manager)) })
}

//export kvlGoManagerStats
func kvlGoManagerStats(manager C.kvl_manager, buffer *C.char, bytes *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		return text(buffer, bytes, func() ([]byte, error) { return library.ManagerStats(capi.Handle(manager)) })
	})
}

//export kvlGoJobSize
func kvlGoJobSize(job C.kvl_job, blocks, evicted *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		need(&a, "blocks", blocks)
		if need(&a, "evicted", evicted); a.err() != nil {
			return a.err()
		}
		n, gone, err := library.JobSize(capi.Handle(job))
		*blocks, *evicted = C.size_t(n), C.size_t(gone)
		return err
	})
}

//export kvlGoJobAnchors
func kvlGoJobAnchors(job C.kvl_job, anchors *C.uint8_t, n C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, anchors, n)
		if a.err() != nil {
			return a.err()
		}
		return library.JobAnchors(capi.Handle(job), k)
	})
}

//export kvlGoJobDirect
func kvlGoJobDirect(job C.kvl_job, direct *C.uint8_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if need(&a, "direct", direct); a.err() != nil {
			return a.err()
		}
		on, err := library.JobDirect(capi.Handle(job))
		*direct = 0
		if on {
			*direct = 1
		}
		return err
	})
}

//export kvlGoJobEvicted
func kvlGoJobEvicted(job C.kvl_job, groups *C.uint32_t, hashes *C.uint8_t, hashBytes, n C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		if hashBytes > maxElements || n > 0 && hashBytes > maxElements/n {
			a.bad("%d hashes of %d bytes are too many", n, hashBytes)
			return a.err()
		}
		g, h := array[uint32](&a, "groups", unsafe.Pointer(groups), n), array[byte](&a, "hashes", unsafe.Pointer(hashes), n*hashBytes)
		if a.err() != nil {
			return a.err()
		}
		return library.JobEvicted(capi.Handle(job), g, h, int(hashBytes))
	})
}

//export kvlGoJobLoaded
func kvlGoJobLoaded(job C.kvl_job, seconds, wait C.double, why **C.char) C.int32_t {
	return call(why, func() error {
		return library.JobLoaded(capi.Handle(job), float64(seconds), float64(wait))
	})
}

//export kvlGoJobEnd
func kvlGoJobEnd(job C.kvl_job, failed *C.uint8_t, n C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		var bad []uint8
		if failed != nil {
			bad = array[uint8](&a, "failed", unsafe.Pointer(failed), n)
		}
		if a.err() != nil {
			return a.err()
		}
		return library.JobEnd(capi.Handle(job), bad)
	})
}

//export kvlGoSetAnchors
func kvlGoSetAnchors(engine C.kvl_engine, keys, anchors *C.uint8_t, n C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k, of := keysOf(&a, keys, n), keysOf(&a, anchors, n)
		if a.err() != nil {
			return a.err()
		}
		return library.SetAnchors(capi.Handle(engine), k, of)
	})
}

//export kvlGoDrop
func kvlGoDrop(engine C.kvl_engine, keys *C.uint8_t, n C.size_t, stay *C.size_t, why **C.char) C.int32_t {
	return call(why, func() error {
		var a args
		k := keysOf(&a, keys, n)
		if need(&a, "stay", stay); a.err() != nil {
			return a.err()
		}
		left, err := library.Drop(capi.Handle(engine), k)
		*stay = C.size_t(left)
		return err
	})
}
