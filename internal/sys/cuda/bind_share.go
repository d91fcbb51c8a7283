package cuda

import (
	"runtime"
	"unsafe"
)

func (s *symbols) bindSharing(a *API) {
	addressRange, retain := s.Need("cuMemGetAddressRange_v2"), s.Need("cuMemRetainAllocationHandle")
	a.MemGetAddressRange = func(p DevicePtr) (DevicePtr, uint64, Result) {
		f := s.get()
		defer s.put(f)
		r := f.call(addressRange, f.outPtr(0), f.outPtr(1), uintptr(p))
		return DevicePtr(f.out[0]), f.out[1], r
	}
	a.MemRetainHandle = func(p DevicePtr) (MemHandle, Result) {
		v, r := s.out(retain, uintptr(p))
		return MemHandle(v), r
	}
	exportFn, importFn := s.Need("cuMemExportToShareableHandle"), s.Need("cuMemImportFromShareableHandle")
	a.MemExportFD = func(h MemHandle) (int, Result) {
		v, r := s.out(exportFn, uintptr(h), uintptr(MemHandlePosixFD), 0)
		return int(int32(uint32(v))), r
	}
	a.MemExportFabric = func(h MemHandle) (data [HandleBytes]byte, r Result) {
		return s.handle(func(f *frame, data uintptr) Result {
			return f.call(exportFn, data, uintptr(h), uintptr(MemHandleFabric), 0)
		})
	}
	a.MemImportFD = func(fd int) (MemHandle, Result) {
		v, r := s.out(importFn, uintptr(fd), uintptr(MemHandlePosixFD))
		return MemHandle(v), r
	}
	a.MemImportFabric = func(data *[HandleBytes]byte) (MemHandle, Result) {
		f := s.get()
		defer s.put(f)
		r := f.call(importFn, f.outPtr(0), f.pin(0, unsafe.Pointer(data)), uintptr(MemHandleFabric))
		return MemHandle(f.out[0]), r
	}
	s.bindIPC(a)
}

func (s *symbols) bindIPC(a *API) {
	get, open, closeFn := s.Need("cuIpcGetMemHandle"), s.Need("cuIpcOpenMemHandle_v2"), s.Need("cuIpcCloseMemHandle")
	a.IPCGetMemHandle = func(p DevicePtr) ([HandleBytes]byte, Result) {
		return s.handle(func(f *frame, data uintptr) Result { return f.call(get, data, uintptr(p)) })
	}
	a.IPCOpenMemHandle = func(data *[HandleBytes]byte) (DevicePtr, Result) {
		f := s.get()
		defer s.put(f)
		r := f.openIPC(open, data, ipcLazyPeerAccess)
		return DevicePtr(f.out[0]), r
	}
	a.IPCCloseMemHandle = func(p DevicePtr) Result { return s.do(closeFn, uintptr(p)) }
}

// handle calls a C function that writes a handle to data.
func (s *symbols) handle(call func(f *frame, data uintptr) Result) ([HandleBytes]byte, Result) {
	f := s.get()
	defer s.put(f)
	data := new([HandleBytes]byte)
	r := call(f, f.pin(0, unsafe.Pointer(data)))
	return *data, r
}

// openIPC calls a function with these parameters: the result pointer, a 64-byte structure by value,
// and flags. On amd64 the structure is passed on the stack, like integer arguments after the sixth,
// and the other parameters in registers. On arm64 its address is passed.
func (f *frame) openIPC(fn uintptr, data *[HandleBytes]byte, flags uintptr) Result {
	if runtime.GOARCH != "amd64" {
		return f.call(fn, f.outPtr(0), f.pin(0, unsafe.Pointer(data)), flags)
	}
	w := (*[HandleBytes / 8]uintptr)(unsafe.Pointer(data))
	return f.call(fn, f.outPtr(0), flags, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
}
