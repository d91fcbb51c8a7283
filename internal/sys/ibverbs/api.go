package ibverbs

import "syscall"

// API is the library's functions. Load fills it; a test may fill one of its own. Fields are not to be changed while the
// API is in use. Each is named after the function that it calls and says what differs from it. An errno of zero is
// success; what a failed call returns besides means nothing.
type API struct {
	// Devices.
	GetDeviceList  func() (DeviceList, syscall.Errno)
	FreeDeviceList func(l DeviceList)
	GetDeviceName  func(d Device) string
	OpenDevice     func(d Device) (Context, syscall.Errno)
	CloseDevice    func(c Context) syscall.Errno
	QueryDevice    func(c Context, a *DeviceAttr) syscall.Errno
	QueryPort      func(c Context, port uint8, a *PortAttr) syscall.Errno
	QueryGIDEx     func(c Context, port, index uint32, e *GIDEntry) syscall.Errno
	CompVectors    func(c Context) int // how many completion vectors a device has

	// Events of a device. Every event got must be acknowledged, or destroying what it is about waits for ever.
	AsyncFD       func(c Context) int // the descriptor that is readable when there is one; the context's
	GetAsyncEvent func(c Context) (AsyncEvent, syscall.Errno)
	AckAsyncEvent func(e AsyncEvent)
	QPNum         func(q QP) uint32 // of a queue pair in an event that is not acknowledged yet

	// Protection domains and memory regions.
	AllocPD     func(c Context) (PD, syscall.Errno)
	DeallocPD   func(p PD) syscall.Errno
	RegMR       func(p PD, addr, bytes, iova uint64, access uint32) (Registration, syscall.Errno)
	RegDMABufMR func(p PD, off, bytes, iova uint64, fd int, access uint32) (Registration, syscall.Errno) // nil where missing
	DeregMR     func(m MR) syscall.Errno

	// Completion queues. A channel of zero is none. CreateCQ answers how many entries the queue holds.
	CreateCompChannel  func(c Context) (ch CompChannel, fd int, errno syscall.Errno)
	DestroyCompChannel func(ch CompChannel) syscall.Errno
	CreateCQ           func(c Context, entries int, ch CompChannel, vector int) (q CQ, got int, errno syscall.Errno)
	DestroyCQ          func(q CQ) syscall.Errno
	GetCQEvent         func(ch CompChannel) (CQ, syscall.Errno)
	AckCQEvents        func(q CQ, n uint32)
	ReqNotifyCQ        func(q CQ, solicitedOnly bool) syscall.Errno
	PollCQ             func(q CQ, a *WCArray, n int) int // the first n of the array; negative where the queue is lost

	// Queue pairs. CreateQP and CreateSRQ write the capacities given to their attributes.
	CreateQP    func(p PD, a *QPInitAttr) (q QP, num uint32, errno syscall.Errno)
	DestroyQP   func(q QP) syscall.Errno
	ModifyQP    func(q QP, a *QPAttr, mask int32) syscall.Errno
	QueryQP     func(q QP, a *QPAttr, mask int32, init *QPInitAttr) syscall.Errno
	CreateSRQ   func(p PD, a *SRQAttr) (SRQ, syscall.Errno)
	DestroySRQ  func(q SRQ) syscall.Errno
	PostSend    func(q QP, c *SendChain) (posted int, errno syscall.Errno)
	PostRecv    func(q QP, c *RecvChain) (posted int, errno syscall.Errno)
	PostSRQRecv func(q SRQ, c *RecvChain) (posted int, errno syscall.Errno)
}

// Registration is a memory region and its keys.
type Registration struct {
	MR   MR
	LKey uint32
	RKey uint32
}
