package ibverbs

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// The libraries by the names under which systems with the GNU C library have them.
const (
	library  = "libibverbs.so.1"
	cLibrary = "libc.so.6"
)

// Load opens libibverbs.so.1 and resolves its functions. The error wraps ErrNotSupported and holds the loader's reason, or
// names every symbol that a library older than rdma-core 33 lacks.
//
// The library stays in the process for good, whatever becomes of the API: it loads providers, which have state of their own.
func Load() (*API, error) { return load(library) }

func load(name string) (*API, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, err
	}
	s := &symbols{lib: lib, caller: new(caller)}
	s.errnoLocation, err = errnoLocation()
	a := new(API)
	s.bindDevices(a)
	s.bindEvents(a)
	s.bindMemory(a)
	s.bindCompletions(a)
	s.bindQueues(a)
	s.bindDataPath(a)
	// The addresses outlive the handle (see package dl), so nobody has to own it.
	if err := errors.Join(err, errors.Join(s.missing...), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s, of rdma-core 33 or newer: %w", name, err)
	}
	return a, nil
}

func errnoLocation() (uintptr, error) {
	lib, err := dl.Open(cLibrary)
	if err != nil {
		return 0, err
	}
	p, err := lib.Symbol("__errno_location")
	return p, errors.Join(err, lib.Close())
}

// symbols resolves functions and collects what is missing.
type symbols struct {
	*caller
	lib     *dl.Library
	missing []error
}

// need returns the address of a function.
func (s *symbols) need(name string) uintptr {
	p, err := s.lib.Symbol(name)
	if err != nil {
		s.missing = append(s.missing, err)
	}
	return p
}

// optional returns the address of a function, or zero.
func (s *symbols) optional(name string) uintptr {
	p, err := s.lib.Symbol(name)
	if err != nil {
		return 0
	}
	return p
}
