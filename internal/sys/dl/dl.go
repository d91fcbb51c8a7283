// Package dl opens shared libraries at run time, so that kvlane builds and starts without them.
// Symbols are resolved when they are requested, so a missing symbol is an error at load time and
// not a crash at the first call. The package calls the loader through purego, without cgo.
//
// An opened library is never unloaded; closing it only releases the handle. A Library is safe for
// concurrent use.
package dl

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/ebitengine/purego"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
)

// rtldNoDelete keeps a library loaded after the last close (glibc and musl: <dlfcn.h>). This is
// necessary because drivers start threads that continue after that.
const rtldNoDelete = 0x1000

// Library is an open shared library.
type Library struct {
	name string

	mu     sync.Mutex
	handle uintptr // zero after Close
}

// MissingError is returned if the loader could open none of several libraries. It wraps
// ErrNotSupported and the loader's reasons.
type MissingError struct {
	Names   []string
	Reasons []error // reason for each name
}

// Error returns the names and the loader's reasons.
func (e *MissingError) Error() string {
	return fmt.Sprintf("open library %s: %v: %v", strings.Join(e.Names, " or "), errdefs.ErrNotSupported, errors.Join(e.Reasons...))
}

// Unwrap returns ErrNotSupported and the reasons.
func (e *MissingError) Unwrap() []error {
	return append([]error{errdefs.ErrNotSupported}, e.Reasons...)
}

// Brief returns a short message if the library is not installed, otherwise the loader's reasons.
func (e *MissingError) Brief() string {
	for i, reason := range e.Reasons {
		// The message of glibc begins with the name of the missing file, which may be a dependency.
		if text := reason.Error(); !strings.HasPrefix(text, e.Names[i]+":") || !strings.Contains(text, "No such file") {
			return errors.Join(e.Reasons...).Error()
		}
	}
	return strings.Join(e.Names, " or ") + " not found"
}

// Open opens the first of names that the loader finds. Names without a slash are searched for as by
// dlopen(3). The error is a *MissingError.
func Open(names ...string) (*Library, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("open library: no name: %w", errdefs.ErrInvalid)
	}
	// The loader's error is specific to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var reasons []error
	for _, name := range names {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL|rtldNoDelete)
		if err == nil {
			leak.Add(leak.Handles, 1)
			return &Library{name: name, handle: h}, nil
		}
		reasons = append(reasons, err)
	}
	return nil, &MissingError{Names: names, Reasons: reasons}
}

// Name returns the name of the loaded library.
func (l *Library) Name() string { return l.name }

// Symbol returns the address of a function. The error wraps ErrNotSupported and contains the name.
func (l *Library) Symbol(name string) (uintptr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == 0 {
		return 0, fmt.Errorf("look up %s in %s: %w", name, l.name, errdefs.ErrClosed)
	}
	runtime.LockOSThread() // see Open
	defer runtime.UnlockOSThread()
	p, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0, fmt.Errorf("look up %s in %s: %w: %w", name, l.name, errdefs.ErrNotSupported, err)
	}
	return p, nil
}

// Close releases the handle. Afterwards Symbol returns an error. The code stays loaded, so
// addresses returned by Symbol remain valid. Further calls return nil.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == 0 {
		return nil
	}
	if err := purego.Dlclose(l.handle); err != nil {
		return fmt.Errorf("close library %s: %w", l.name, err)
	}
	l.handle = 0
	leak.Add(leak.Handles, -1)
	return nil
}
