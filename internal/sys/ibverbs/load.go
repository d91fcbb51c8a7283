package ibverbs

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// library is the name of the library on systems with the GNU C library.
const library = "libibverbs.so.1"

// Load opens libibverbs.so.1 and resolves its functions. The error wraps ErrNotSupported, with the
// loader's reason or the names of every symbol that a library older than rdma-core 33 lacks.
//
// The library stays in the process, because it loads providers with state of their own.
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
	// The addresses outlive the handle (see package dl), so it can be closed.
	if err := errors.Join(err, s.Missing(), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s, of rdma-core 33 or newer: %w", name, err)
	}
	return a, nil
}

// symbols converts addresses to functions.
type symbols struct {
	*caller
	*dl.Symbols
}
