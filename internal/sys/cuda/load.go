package cuda

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// CUDA versions of signatures, in the format of cuGetProcAddress.
const (
	cuda120 = 12000
	cuda124 = 12040
	cuda128 = 12080
)

// Load opens libcuda.so.1 and resolves its functions. It does not initialize the driver. The error
// wraps ErrNotSupported and contains the loader's reason, or the missing symbols if the driver is
// older than CUDA 12.0.
//
// The library is never unloaded, because the driver has its own threads.
func Load() (*API, error) { return load("libcuda.so.1") }

func load(name string) (*API, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, err
	}
	s := &symbols{caller: newCaller(), Symbols: lib.Symbols()}
	a := new(API)
	s.bindDevices(a)
	s.bindContexts(a)
	s.bindPeers(a)
	s.bindMemory(a)
	s.bindSharing(a)
	s.bindStreams(a)
	s.bindWork(a)
	s.bindOptional(a)
	// The functions remain loaded after the handle is closed (see package dl).
	if err := errors.Join(s.Missing(), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s, of CUDA 12.0 or newer: %w", name, err)
	}
	return a, nil
}

// symbols binds resolved addresses to Go functions.
type symbols struct {
	*caller
	*dl.Symbols
}

// optional returns the address of the function with the signature of a CUDA version, or zero. name
// has no version suffix.
func (s *symbols) optional(getProcAddress uintptr, name string, version int) uintptr {
	if getProcAddress == 0 {
		return 0
	}
	f := s.get()
	defer s.put(f)
	r := f.call(getProcAddress, f.pin(0, cString(name)), f.outPtr(0), uintptr(version), 0, f.outPtr(1))
	if r != Success {
		return 0
	}
	return uintptr(f.out[0])
}
