package dl

import (
	"errors"

	"github.com/ebitengine/purego"
)

// Symbols resolves functions of a library and collects the missing ones, so that one error can list
// them all.
type Symbols struct {
	lib     *Library
	missing []error
}

// Symbols returns a new Symbols for the library.
func (l *Library) Symbols() *Symbols { return &Symbols{lib: l} }

// Need returns the address of a function. If the function is missing, it returns zero, and Missing
// will return an error.
func (s *Symbols) Need(name string) uintptr {
	p, err := s.lib.Symbol(name)
	if err != nil {
		s.missing = append(s.missing, err)
	}
	return p
}

// Bind sets fn, a pointer to a variable of function type, to the function. If the function is
// missing, fn is unchanged, and Missing will return an error.
func (s *Symbols) Bind(fn any, name string) {
	if p := s.Need(name); p != 0 {
		purego.RegisterFunc(fn, p)
	}
}

// Optional returns the address of a function, or zero if it is missing.
func (s *Symbols) Optional(name string) uintptr {
	p, err := s.lib.Symbol(name)
	if err != nil {
		return 0
	}
	return p
}

// Missing returns an error that lists all missing functions, or nil.
func (s *Symbols) Missing() error { return errors.Join(s.missing...) }

// ErrnoLocation returns the address of the C function __errno_location: int *(void).
func ErrnoLocation() (uintptr, error) {
	lib, err := Open("libc.so.6")
	if err != nil {
		return 0, err
	}
	p, err := lib.Symbol("__errno_location")
	return p, errors.Join(err, lib.Close())
}
