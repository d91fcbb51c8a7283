package ibverbs

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// library is the name of the library on systems with glibc.
const library = "libibverbs.so.1"

// Load opens libibverbs.so.1 and resolves its functions. The error wraps ErrNotSupported and
// contains the loader's reason, or the missing symbols if the library is older than rdma-core 33.
//
// The library is never unloaded, because it loads providers that have their own state.
func Load() (*API, error) { return load(library) }

func load(name string) (*API, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, err
	}
	s := &symbols{caller: new(caller), Symbols: lib.Symbols()}
	s.errnoLocation, err = dl.ErrnoLocation()
	a := new(API)
	s.bindDevices(a)
	s.bindEvents(a)
	s.bindMemory(a)
	s.bindCompletions(a)
	s.bindQueues(a)
	s.bindDataPath(a)
	// The functions remain loaded after the handle is closed (see package dl).
	if err := errors.Join(err, s.Missing(), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s, of rdma-core 33 or newer: %w", name, err)
	}
	return a, nil
}

// symbols binds resolved addresses to Go functions.
type symbols struct {
	*caller
	*dl.Symbols
}
