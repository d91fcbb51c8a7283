package ibverbs

import (
	"syscall"
	"unsafe"
)

func (s *symbols) bindDevices(a *API) {
	list, free, name := s.Need("ibv_get_device_list"), s.Need("ibv_free_device_list"), s.Need("ibv_get_device_name")
	a.GetDeviceList = func() (DeviceList, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		array, errno := s.object(f, list, f.outPtr(0))
		if errno != 0 {
			return DeviceList{}, errno
		}
		n := int(int32(uint32(f.out[0])))
		devices := append([]Device(nil), unsafe.Slice((*Device)(pointer(array)), n)...)
		return DeviceList{Devices: devices, array: array}, 0
	}
	a.FreeDeviceList = func(l DeviceList) {
		f := s.get()
		defer s.put(f)
		f.call(free, l.array)
	}
	a.GetDeviceName = func(d Device) string {
		f := s.get()
		defer s.put(f)
		return goString(f.call(name, uintptr(d)))
	}

	open, closeDevice := s.Need("ibv_open_device"), s.Need("ibv_close_device")
	a.OpenDevice = func(d Device) (Context, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		c, errno := s.object(f, open, uintptr(d))
		return Context(c), errno
	}
	a.CloseDevice = func(c Context) syscall.Errno { return s.do(closeDevice, uintptr(c)) }

	device, port, gid := s.Need("ibv_query_device"), s.Need("ibv_query_port"), s.Need("_ibv_query_gid_ex")
	a.QueryDevice = func(c Context, attr *DeviceAttr) syscall.Errno {
		f := s.get()
		defer s.put(f)
		return s.status(f, device, uintptr(c), f.pin(0, unsafe.Pointer(attr)))
	}
	// The symbol sets all members except the last one, port_cap_flags2. The inline function in the
	// header requests that separately.
	a.QueryPort = func(c Context, number uint8, attr *PortAttr) syscall.Errno {
		f := s.get()
		defer s.put(f)
		*attr = PortAttr{}
		return s.status(f, port, uintptr(c), uintptr(number), f.pin(0, unsafe.Pointer(attr)))
	}
	a.QueryGIDEx = func(c Context, number, index uint32, e *GIDEntry) syscall.Errno {
		f := s.get()
		defer s.put(f)
		return s.status(f, gid, uintptr(c), uintptr(number), uintptr(index), f.pin(0, unsafe.Pointer(e)), 0, unsafe.Sizeof(*e))
	}
	a.CompVectors = func(c Context) int { return int(*member[int32](uintptr(c), offContextVectors)) }
}

func (s *symbols) bindEvents(a *API) {
	get, ack := s.Need("ibv_get_async_event"), s.Need("ibv_ack_async_event")
	a.AsyncFD = func(c Context) int { return int(*member[int32](uintptr(c), offContextAsyncFD)) }
	a.GetAsyncEvent = func(c Context) (AsyncEvent, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		e := new(AsyncEvent)
		errno := s.status(f, get, uintptr(c), f.pin(0, unsafe.Pointer(e)))
		return *e, errno
	}
	a.AckAsyncEvent = func(e AsyncEvent) {
		f := s.get()
		defer s.put(f)
		f.call(ack, f.pin(0, unsafe.Pointer(&e)))
	}
	a.QPNum = func(q QP) uint32 { return *member[uint32](uintptr(q), offQPNum) }
}

func (s *symbols) bindMemory(a *API) {
	alloc, dealloc := s.Need("ibv_alloc_pd"), s.Need("ibv_dealloc_pd")
	a.AllocPD = func(c Context) (PD, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		p, errno := s.object(f, alloc, uintptr(c))
		return PD(p), errno
	}
	a.DeallocPD = func(p PD) syscall.Errno { return s.do(dealloc, uintptr(p)) }

	// Unlike ibv_reg_mr, this function ignores optional access flags that the device does not
	// support.
	reg, dereg := s.Need("ibv_reg_mr_iova2"), s.Need("ibv_dereg_mr")
	a.RegMR = func(p PD, addr, bytes, iova uint64, access uint32) (Registration, syscall.Errno) {
		return s.register(reg, uintptr(p), uintptr(addr), uintptr(bytes), uintptr(iova), uintptr(access))
	}
	a.DeregMR = func(m MR) syscall.Errno { return s.do(dereg, uintptr(m)) }
	if dmabuf := s.Optional("ibv_reg_dmabuf_mr"); dmabuf != 0 {
		a.RegDMABufMR = func(p PD, off, bytes, iova uint64, fd int, access uint32) (Registration, syscall.Errno) {
			return s.register(dmabuf, uintptr(p), uintptr(off), uintptr(bytes), uintptr(iova), uintptr(fd), uintptr(access))
		}
	}
}

func (s *symbols) register(fn uintptr, args ...uintptr) (Registration, syscall.Errno) {
	f := s.get()
	defer s.put(f)
	m, errno := s.object(f, fn, args...)
	if errno != 0 {
		return Registration{}, errno
	}
	return Registration{MR: MR(m), LKey: *member[uint32](m, offMRLKey), RKey: *member[uint32](m, offMRRKey)}, 0
}

func (s *symbols) bindCompletions(a *API) {
	channel, destroyChannel := s.Need("ibv_create_comp_channel"), s.Need("ibv_destroy_comp_channel")
	a.CreateCompChannel = func(c Context) (CompChannel, int, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		ch, errno := s.object(f, channel, uintptr(c))
		if errno != 0 {
			return 0, -1, errno
		}
		return CompChannel(ch), int(*member[int32](ch, offChannelFD)), 0
	}
	a.DestroyCompChannel = func(ch CompChannel) syscall.Errno { return s.do(destroyChannel, uintptr(ch)) }

	create, destroy := s.Need("ibv_create_cq"), s.Need("ibv_destroy_cq")
	a.CreateCQ = func(c Context, entries int, ch CompChannel, vector int) (CQ, int, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		q, errno := s.object(f, create, uintptr(c), uintptr(entries), 0, uintptr(ch), uintptr(vector))
		if errno != 0 {
			return 0, 0, errno
		}
		return CQ(q), int(*member[int32](q, offCQEntries)), 0
	}
	a.DestroyCQ = func(q CQ) syscall.Errno { return s.do(destroy, uintptr(q)) }

	get, ack := s.Need("ibv_get_cq_event"), s.Need("ibv_ack_cq_events")
	a.GetCQEvent = func(ch CompChannel) (CQ, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		errno := s.status(f, get, uintptr(ch), f.outPtr(0), f.outPtr(1))
		return CQ(f.out[0]), errno
	}
	a.AckCQEvents = func(q CQ, n uint32) {
		f := s.get()
		defer s.put(f)
		f.call(ack, uintptr(q), uintptr(n))
	}
}

func (s *symbols) bindQueues(a *API) {
	create, destroy := s.Need("ibv_create_qp"), s.Need("ibv_destroy_qp")
	a.CreateQP = func(p PD, attr *QPInitAttr) (QP, uint32, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		q, errno := s.object(f, create, uintptr(p), f.pin(0, unsafe.Pointer(attr)))
		if errno != 0 {
			return 0, 0, errno
		}
		return QP(q), *member[uint32](q, offQPNum), 0
	}
	a.DestroyQP = func(q QP) syscall.Errno { return s.do(destroy, uintptr(q)) }

	modify, query := s.Need("ibv_modify_qp"), s.Need("ibv_query_qp")
	a.ModifyQP = func(q QP, attr *QPAttr, mask int32) syscall.Errno {
		f := s.get()
		defer s.put(f)
		return s.status(f, modify, uintptr(q), f.pin(0, unsafe.Pointer(attr)), uintptr(mask))
	}
	a.QueryQP = func(q QP, attr *QPAttr, mask int32, init *QPInitAttr) syscall.Errno {
		f := s.get()
		defer s.put(f)
		return s.status(f, query, uintptr(q), f.pin(0, unsafe.Pointer(attr)), uintptr(mask), f.pin(1, unsafe.Pointer(init)))
	}

	createShared, destroyShared := s.Need("ibv_create_srq"), s.Need("ibv_destroy_srq")
	a.CreateSRQ = func(p PD, attr *SRQAttr) (SRQ, syscall.Errno) {
		f := s.get()
		defer s.put(f)
		init := &srqInitAttr{Attr: *attr}
		q, errno := s.object(f, createShared, uintptr(p), f.pin(0, unsafe.Pointer(init)))
		*attr = init.Attr
		return SRQ(q), errno
	}
	a.DestroySRQ = func(q SRQ) syscall.Errno { return s.do(destroyShared, uintptr(q)) }
}
