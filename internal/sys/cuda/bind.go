package cuda

import "unsafe"

func (s *symbols) bindDevices(a *API) {
	name, text := s.Need("cuGetErrorName"), s.Need("cuGetErrorString")
	a.ErrorName = func(r Result) string { return s.constant(name, r) }
	a.ErrorText = func(r Result) string { return s.constant(text, r) }

	initFn := s.Need("cuInit")
	a.Init = func(flags uint32) Result { return s.do(initFn, uintptr(flags)) }
	version, count := s.Need("cuDriverGetVersion"), s.Need("cuDeviceGetCount")
	a.DriverGetVersion = func() (int, Result) {
		v, r := s.out(version)
		return int(v), r
	}
	a.DeviceGetCount = func() (int, Result) {
		v, r := s.out(count)
		return int(v), r
	}
	get := s.Need("cuDeviceGet")
	a.DeviceGet = func(ordinal int) (DeviceID, Result) {
		v, r := s.out(get, uintptr(ordinal))
		return DeviceID(v), r
	}
	devName, pci := s.Need("cuDeviceGetName"), s.Need("cuDeviceGetPCIBusId")
	a.DeviceGetName = func(dev DeviceID) (string, Result) { return s.text(devName, dev) }
	a.DeviceGetPCIBusID = func(dev DeviceID) (string, Result) { return s.text(pci, dev) }
	uuid := s.Need("cuDeviceGetUuid_v2")
	a.DeviceGetUUID = func(dev DeviceID) ([16]byte, Result) {
		f := s.get()
		defer s.put(f)
		r := f.call(uuid, f.outPtr(0), uintptr(dev))
		return *(*[16]byte)(unsafe.Pointer(&f.out)), r
	}
	total, attribute := s.Need("cuDeviceTotalMem_v2"), s.Need("cuDeviceGetAttribute")
	a.DeviceTotalMem = func(dev DeviceID) (uint64, Result) { return s.out(total, uintptr(dev)) }
	a.DeviceGetAttribute = func(attr Attribute, dev DeviceID) (int, Result) {
		v, r := s.out(attribute, uintptr(attr), uintptr(dev))
		return int(int32(uint32(v))), r
	}
}

func (s *symbols) bindContexts(a *API) {
	retain, release := s.Need("cuDevicePrimaryCtxRetain"), s.Need("cuDevicePrimaryCtxRelease_v2")
	a.DevicePrimaryCtxRetain = func(dev DeviceID) (Context, Result) {
		v, r := s.out(retain, uintptr(dev))
		return Context(v), r
	}
	a.DevicePrimaryCtxRelease = func(dev DeviceID) Result { return s.do(release, uintptr(dev)) }
	push, pop, current := s.Need("cuCtxPushCurrent_v2"), s.Need("cuCtxPopCurrent_v2"), s.Need("cuCtxGetCurrent")
	a.CtxPushCurrent = func(ctx Context) Result { return s.do(push, uintptr(ctx)) }
	a.CtxPopCurrent = func() (Context, Result) {
		v, r := s.out(pop)
		return Context(v), r
	}
	a.CtxGetCurrent = func() (Context, Result) {
		v, r := s.out(current)
		return Context(v), r
	}
	priorities := s.Need("cuCtxGetStreamPriorityRange")
	a.CtxGetStreamPriorityRange = func() (least, greatest int, r Result) {
		f := s.get()
		defer s.put(f)
		r = f.call(priorities, f.outPtr(0), f.outPtr(1))
		return int(int32(uint32(f.out[0]))), int(int32(uint32(f.out[1]))), r
	}
	exchange := s.Need("cuThreadExchangeStreamCaptureMode")
	a.ThreadExchangeStreamCaptureMode = func(mode CaptureMode) (CaptureMode, Result) {
		f := s.get()
		f.out[0] = uint64(mode) // the new mode, which the call replaces with the previous mode
		r := f.call(exchange, f.outPtr(0))
		before := CaptureMode(uint32(f.out[0]))
		s.put(f)
		return before, r
	}
}

func (s *symbols) bindStreams(a *API) {
	create, destroy, query := s.Need("cuStreamCreateWithPriority"), s.Need("cuStreamDestroy_v2"), s.Need("cuStreamQuery")
	a.StreamCreateWithPriority = func(flags uint32, priority int) (Stream, Result) {
		v, r := s.out(create, uintptr(flags), uintptr(priority))
		return Stream(v), r
	}
	a.StreamDestroy = func(st Stream) Result { return s.do(destroy, uintptr(st)) }
	a.StreamQuery = func(st Stream) Result { return s.do(query, uintptr(st)) }
	wait := s.Need("cuStreamWaitEvent")
	a.StreamWaitEvent = func(st Stream, e Event) Result { return s.do(wait, uintptr(st), uintptr(e), 0) }

	capturing, begin, end := s.Need("cuStreamIsCapturing"), s.Need("cuStreamBeginCapture_v2"), s.Need("cuStreamEndCapture")
	a.StreamIsCapturing = func(st Stream) (CaptureStatus, Result) {
		f := s.get()
		r := f.call(capturing, uintptr(st), f.outPtr(0))
		status := CaptureStatus(uint32(f.out[0]))
		s.put(f)
		return status, r
	}
	streamCtx := s.Need("cuStreamGetCtx")
	a.StreamGetCtx = func(st Stream) (Context, Result) {
		f := s.get()
		r := f.call(streamCtx, uintptr(st), f.outPtr(0))
		c := Context(f.out[0])
		s.put(f)
		return c, r
	}
	a.StreamBeginCapture = func(st Stream, mode CaptureMode) Result { return s.do(begin, uintptr(st), uintptr(mode)) }
	a.StreamEndCapture = func(st Stream) (Graph, Result) {
		f := s.get()
		r := f.call(end, uintptr(st), f.outPtr(0))
		g := Graph(f.out[0])
		s.put(f)
		return g, r
	}
	graphDestroy := s.Need("cuGraphDestroy")
	a.GraphDestroy = func(g Graph) Result { return s.do(graphDestroy, uintptr(g)) }

	evCreate, evDestroy := s.Need("cuEventCreate"), s.Need("cuEventDestroy_v2")
	a.EventCreate = func(flags uint32) (Event, Result) {
		v, r := s.out(evCreate, uintptr(flags))
		return Event(v), r
	}
	a.EventDestroy = func(e Event) Result { return s.do(evDestroy, uintptr(e)) }
	record, evQuery := s.Need("cuEventRecord"), s.Need("cuEventQuery")
	a.EventRecord = func(e Event, st Stream) Result { return s.do(record, uintptr(e), uintptr(st)) }
	a.EventQuery = func(e Event) Result { return s.do(evQuery, uintptr(e)) }
}

func (s *symbols) bindWork(a *API) {
	memcpy, memset := s.Need("cuMemcpyAsync"), s.Need("cuMemsetD8Async")
	a.MemcpyAsync = func(dst, src DevicePtr, bytes uint64, st Stream) Result {
		return s.do(memcpy, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(st))
	}
	a.MemsetD8Async = func(dst DevicePtr, v byte, bytes uint64, st Stream) Result {
		return s.do(memset, uintptr(dst), uintptr(v), uintptr(bytes), uintptr(st))
	}
	rows := s.Need("cuMemcpy2DAsync_v2")
	a.Memcpy2DAsync = func(c *Memcpy2D, st Stream) Result {
		f := s.get()
		r := f.call(rows, f.pin(0, unsafe.Pointer(c)), uintptr(st))
		s.put(f)
		return r
	}
	load, unload, function := s.Need("cuModuleLoadData"), s.Need("cuModuleUnload"), s.Need("cuModuleGetFunction")
	a.ModuleLoadData = func(image []byte) (Module, Result) {
		f := s.get()
		defer s.put(f)
		r := f.call(load, f.outPtr(0), f.pin(0, cString(string(image))))
		return Module(f.out[0]), r
	}
	a.ModuleUnload = func(m Module) Result { return s.do(unload, uintptr(m)) }
	a.ModuleGetFunction = func(m Module, name string) (Function, Result) {
		f := s.get()
		defer s.put(f)
		r := f.call(function, f.outPtr(0), uintptr(m), f.pin(0, cString(name)))
		return Function(f.out[0]), r
	}
	fnAttribute := s.Need("cuFuncGetAttribute")
	a.FuncGetAttribute = func(attr FunctionAttribute, fn Function) (int, Result) {
		v, r := s.out(fnAttribute, uintptr(attr), uintptr(fn))
		return int(int32(uint32(v))), r
	}
	launch := s.Need("cuLaunchKernel")
	a.LaunchKernel = func(fn Function, grid, block uint32, st Stream, p *KernelParams) Result {
		f := s.get()
		r := f.call(launch, uintptr(fn), uintptr(grid), 1, 1, uintptr(block), 1, 1, 0, uintptr(st), f.pin(0, p.pointers()), 0)
		s.put(f)
		return r
	}
}

func (s *symbols) bindOptional(a *API) {
	proc := s.Need("cuGetProcAddress_v2")
	if batch := s.optional(proc, "cuMemcpyBatchAsync", cuda128); batch != 0 {
		attrs := &memcpyAttributes{SrcAccessOrder: memcpySrcOrderStream}
		first := new(uint64) // index of the first copy to which the attributes apply
		a.MemcpyBatchAsync = func(dsts, srcs []DevicePtr, sizes []uint64, st Stream) Result {
			f := s.get()
			r := f.call(batch, f.pin(0, unsafe.Pointer(unsafe.SliceData(dsts))), f.pin(1, unsafe.Pointer(unsafe.SliceData(srcs))),
				f.pin(2, unsafe.Pointer(unsafe.SliceData(sizes))), uintptr(len(dsts)), uintptr(unsafe.Pointer(attrs)),
				uintptr(unsafe.Pointer(first)), 1, f.outPtr(0), uintptr(st))
			s.put(f)
			return r
		}
	}
	if wait := s.optional(proc, "cuStreamWaitValue64", cuda120); wait != 0 {
		a.StreamWaitValue64 = func(st Stream, addr DevicePtr, value uint64, flags uint32) Result {
			return s.do(wait, uintptr(st), uintptr(addr), uintptr(value), uintptr(flags))
		}
	}
	if write := s.optional(proc, "cuStreamWriteValue64", cuda120); write != 0 {
		a.StreamWriteValue64 = func(st Stream, addr DevicePtr, value uint64, flags uint32) Result {
			return s.do(write, uintptr(st), uintptr(addr), uintptr(value), uintptr(flags))
		}
	}
	if funcLoad := s.optional(proc, "cuFuncLoad", cuda124); funcLoad != 0 {
		a.FuncLoad = func(fn Function) Result { return s.do(funcLoad, uintptr(fn)) }
	}
	if export := s.optional(proc, "cuMemGetHandleForAddressRange", cuda120); export != 0 {
		a.MemExportDMABuf = func(p DevicePtr, bytes uint64) (int, Result) {
			v, r := s.out(export, uintptr(p), uintptr(bytes), memRangeDMABuf, 0)
			return int(int32(uint32(v))), r
		}
	}
	if flush := s.optional(proc, "cuFlushGPUDirectRDMAWrites", cuda120); flush != 0 {
		a.FlushGPUDirectRDMAWrites = func(to RDMAScope) Result { return s.do(flush, flushTargetCurrent, uintptr(to)) }
	}
}
