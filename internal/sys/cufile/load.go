package cufile

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// library is the name of the library on systems with glibc.
const library = "libcufile.so.0"

// Load opens libcufile.so.0 and resolves its functions. It does not open the driver. The error
// wraps ErrNotSupported and contains the loader's reason or the missing symbols.
func Load() (*API, error) { return LoadFrom(library) }

// LoadFrom is like Load for a library with another name.
func LoadFrom(name string) (*API, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, err
	}
	s := &symbols{caller: new(caller), Symbols: lib.Symbols()}
	s.errnoLocation, err = dl.ErrnoLocation()
	a := new(API)
	s.bindDriver(a)
	s.bindFiles(a)
	s.bindTransfers(a)
	s.bindAsync(a)
	s.bindOptional(a)
	// The functions remain loaded after the handle is closed (see package dl).
	if err := errors.Join(err, s.Missing(), lib.Close()); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return a, nil
}

// symbols binds resolved addresses to Go functions.
type symbols struct {
	*caller
	*dl.Symbols
}

func (s *symbols) bindDriver(a *API) {
	open, properties := s.Need("cuFileDriverOpen"), s.Need("cuFileDriverGetProperties")
	a.DriverOpen = func() Result { return s.do(open) }
	a.DriverGetProperties = func() (Properties, Result) {
		f := s.get()
		defer s.put(f)
		f.props = Properties{}
		r := f.result(properties, uintptr(unsafe.Pointer(&f.props)))
		return f.props, r
	}
	shut := s.Optional("cuFileDriverClose_v2")
	if shut == 0 {
		shut = s.Need("cuFileDriverClose")
	}
	a.DriverClose = func() Result { return s.do(shut) }
}

func (s *symbols) bindFiles(a *API) {
	register, deregister := s.Need("cuFileHandleRegister"), s.Need("cuFileHandleDeregister")
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
	pin, unpin := s.Need("cuFileBufRegister"), s.Need("cuFileBufDeregister")
	a.BufRegister = func(base, bytes uint64, flags int) Result {
		return s.do(pin, uintptr(base), uintptr(bytes), uintptr(flags))
	}
	a.BufDeregister = func(base uint64) Result { return s.do(unpin, uintptr(base)) }
}

func (s *symbols) bindTransfers(a *API) {
	bind := func(name string) func(Handle, uint64, uint64, int64, int64) (int64, syscall.Errno) {
		fn := s.Need(name)
		return func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno) {
			return s.transfer(fn, uintptr(h), uintptr(base), uintptr(bytes), uintptr(fileOff), uintptr(bufOff))
		}
	}
	a.Read, a.Write = bind("cuFileRead"), bind("cuFileWrite")
}

func (s *symbols) bindAsync(a *API) {
	bind := func(name string) func(Handle, uint64, Words, uintptr) Result {
		fn := s.Optional(name)
		if fn == 0 {
			return nil
		}
		return func(h Handle, base uint64, w Words, stream uintptr) Result {
			return s.do(fn, uintptr(h), uintptr(base), w.Size, w.FileOffset, w.BufferOffset, w.Moved, stream)
		}
	}
	a.ReadAsync, a.WriteAsync = bind("cuFileReadAsync"), bind("cuFileWriteAsync")
}

func (s *symbols) bindOptional(a *API) {
	if fn := s.Optional("cuFileGetVersion"); fn != 0 {
		a.GetVersion = func() (int, Result) {
			f := s.get()
			defer s.put(f)
			r := f.result(fn, f.outPtr())
			return int(int32(uint32(f.out))), r
		}
	}
	if fn := s.Optional("cuFileGetParameterBool"); fn != 0 {
		a.GetParameterBool = func(param int) (bool, Result) {
			f := s.get()
			defer s.put(f)
			r := f.result(fn, uintptr(param), f.outPtr())
			return f.out&0xff != 0, r
		}
	}
}
