package cufile

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// The libraries by the names under which systems with the GNU C library have them.
const (
	library  = "libcufile.so.0"
	cLibrary = "libc.so.6"
)

// Load opens libcufile.so.0 and resolves its functions. It opens no driver. The error wraps ErrNotSupported and holds the
// loader's reason, or names every symbol that is missing.
func Load() (*API, error) { return LoadFrom(library) }

// LoadFrom is Load for a library of another name.
func LoadFrom(name string) (*API, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, err
	}
	s := &symbols{lib: lib, caller: new(caller)}
	s.errnoLocation, err = errnoLocation()
	a := new(API)
	s.bindDriver(a)
	s.bindFiles(a)
	s.bindTransfers(a)
	s.bindAsync(a)
	s.bindOptional(a)
	// The addresses outlive the handle (see package dl), so nobody has to own it.
	if err := errors.Join(err, errors.Join(s.missing...), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
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

func (s *symbols) bindDriver(a *API) {
	open, properties := s.need("cuFileDriverOpen"), s.need("cuFileDriverGetProperties")
	a.DriverOpen = func() Result { return s.do(open) }
	a.DriverGetProperties = func() (Properties, Result) {
		f := s.get()
		defer s.put(f)
		f.props = Properties{}
		r := f.result(properties, uintptr(unsafe.Pointer(&f.props)))
		return f.props, r
	}
	shut := s.optional("cuFileDriverClose_v2")
	if shut == 0 {
		shut = s.need("cuFileDriverClose")
	}
	a.DriverClose = func() Result { return s.do(shut) }
}

func (s *symbols) bindFiles(a *API) {
	register, deregister := s.need("cuFileHandleRegister"), s.need("cuFileHandleDeregister")
	a.HandleRegister = func(fd int) (Handle, Result) {
		f := s.get()
		defer s.put(f)
		f.descr = descriptor{kind: handleTypeFD, fd: int32(fd)}
		r := f.result(register, f.outPtr(), uintptr(unsafe.Pointer(&f.descr)))
		return Handle(f.out), r
	}
	a.HandleDeregister = func(h Handle) {
		f := s.get()
		defer s.put(f)
		f.call(deregister, uintptr(h))
	}
	pin, unpin := s.need("cuFileBufRegister"), s.need("cuFileBufDeregister")
	a.BufRegister = func(base, bytes uint64, flags int) Result {
		return s.do(pin, uintptr(base), uintptr(bytes), uintptr(flags))
	}
	a.BufDeregister = func(base uint64) Result { return s.do(unpin, uintptr(base)) }
}

func (s *symbols) bindTransfers(a *API) {
	bind := func(name string) func(Handle, uint64, uint64, int64, int64) (int64, syscall.Errno) {
		fn := s.need(name)
		return func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno) {
			return s.transfer(fn, uintptr(h), uintptr(base), uintptr(bytes), uintptr(fileOff), uintptr(bufOff))
		}
	}
	a.Read, a.Write = bind("cuFileRead"), bind("cuFileWrite")
}

func (s *symbols) bindAsync(a *API) {
	bind := func(name string) func(Handle, uint64, Words, uintptr) Result {
		fn := s.optional(name)
		if fn == 0 {
			return nil
		}
		return func(h Handle, base uint64, w Words, stream uintptr) Result {
			return s.do(fn, uintptr(h), uintptr(base), w.Size, w.FileOffset, w.BufferOffset, w.Moved, stream)
		}
	}
	a.ReadAsync, a.WriteAsync = bind("cuFileReadAsync"), bind("cuFileWriteAsync")
	if fn := s.optional("cuFileStreamRegister"); fn != 0 {
		a.StreamRegister = func(stream uintptr, flags uint32) Result { return s.do(fn, stream, uintptr(flags)) }
	}
	if fn := s.optional("cuFileStreamDeregister"); fn != 0 {
		a.StreamDeregister = func(stream uintptr) Result { return s.do(fn, stream) }
	}
}

func (s *symbols) bindOptional(a *API) {
	if fn := s.optional("cuFileUseCount"); fn != 0 {
		a.UseCount = func() int64 {
			f := s.get()
			defer s.put(f)
			return int64(f.call(fn))
		}
	}
	if fn := s.optional("cuFileGetVersion"); fn != 0 {
		a.GetVersion = func() (int, Result) {
			f := s.get()
			defer s.put(f)
			r := f.result(fn, f.outPtr())
			return int(int32(uint32(f.out))), r
		}
	}
	if fn := s.optional("cuFileGetParameterBool"); fn != 0 {
		a.GetParameterBool = func(param int) (bool, Result) {
			f := s.get()
			defer s.put(f)
			r := f.result(fn, uintptr(param), f.outPtr())
			return f.out&0xff != 0, r
		}
	}
}
