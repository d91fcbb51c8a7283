package cuda

import "unsafe"

func (s *symbols) bindMemory(a *API) {
	alloc, free := s.Need("cuMemAlloc_v2"), s.Need("cuMemFree_v2")
	a.MemAlloc = func(bytes uint64) (DevicePtr, Result) {
		v, r := s.out(alloc, uintptr(bytes))
		return DevicePtr(v), r
	}
	a.MemFree = func(p DevicePtr) Result { return s.do(free, uintptr(p)) }

	register, unregister := s.Need("cuMemHostRegister_v2"), s.Need("cuMemHostUnregister")
	a.MemHostRegister = func(addr, bytes uint64, flags uint32) Result {
		return s.do(register, uintptr(addr), uintptr(bytes), uintptr(flags))
	}
	a.MemHostUnregister = func(addr uint64) Result { return s.do(unregister, uintptr(addr)) }
	devPtr := s.Need("cuMemHostGetDevicePointer_v2")
	a.MemHostGetDevicePointer = func(addr uint64) (DevicePtr, Result) {
		v, r := s.out(devPtr, uintptr(addr), 0)
		return DevicePtr(v), r
	}
	s.bindVirtualMemory(a)
}

func (s *symbols) bindVirtualMemory(a *API) {
	granularity, create, release := s.Need("cuMemGetAllocationGranularity"), s.Need("cuMemCreate"), s.Need("cuMemRelease")
	a.MemGetGranularity = func(p MemProp) (uint64, Result) {
		f := s.get()
		defer s.put(f)
		prop := p.native()
		r := f.call(granularity, f.outPtr(0), f.pin(0, unsafe.Pointer(&prop)), memGranularityMinimum)
		return f.out[0], r
	}
	a.MemCreate = func(bytes uint64, p MemProp) (MemHandle, Result) {
		f := s.get()
		defer s.put(f)
		prop := p.native()
		r := f.call(create, f.outPtr(0), uintptr(bytes), f.pin(0, unsafe.Pointer(&prop)), 0)
		return MemHandle(f.out[0]), r
	}
	a.MemRelease = func(h MemHandle) Result { return s.do(release, uintptr(h)) }

	reserve, addressFree := s.Need("cuMemAddressReserve"), s.Need("cuMemAddressFree")
	a.MemAddressReserve = func(bytes uint64) (DevicePtr, Result) {
		v, r := s.out(reserve, uintptr(bytes), 0, 0, 0)
		return DevicePtr(v), r
	}
	a.MemAddressFree = func(p DevicePtr, bytes uint64) Result { return s.do(addressFree, uintptr(p), uintptr(bytes)) }

	mapFn, unmap, access := s.Need("cuMemMap"), s.Need("cuMemUnmap"), s.Need("cuMemSetAccess")
	a.MemMap = func(p DevicePtr, bytes uint64, h MemHandle) Result {
		return s.do(mapFn, uintptr(p), uintptr(bytes), 0, uintptr(h), 0)
	}
	a.MemUnmap = func(p DevicePtr, bytes uint64) Result { return s.do(unmap, uintptr(p), uintptr(bytes)) }
	a.MemSetAccess = func(p DevicePtr, bytes uint64, dev DeviceID) Result {
		f := s.get()
		defer s.put(f)
		desc := memAccessDesc{Location: memLocation{Type: memLocationTypeDevice, ID: int32(dev)}, Flags: memAccessReadWrite}
		return f.call(access, uintptr(p), uintptr(bytes), f.pin(0, unsafe.Pointer(&desc)), 1)
	}
}
