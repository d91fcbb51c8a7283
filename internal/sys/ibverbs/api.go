package ibverbs

import "syscall"

// API is the functions of the library. Load fills it in; tests may fill in their own. Fields must
// not change while the API is in use. Each field has the name of its function, and its comment
// states differences. An errno of zero is success. The other results of a failed call are
// undefined.
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
	CompVectors    func(c Context) int // number of completion vectors of a device

	// Events of a device. Every event must be acknowledged, or destroying its object blocks
	// forever.
	AsyncFD       func(c Context) int // readable if there is an event; owned by the context
	GetAsyncEvent func(c Context) (AsyncEvent, syscall.Errno)
	AckAsyncEvent func(e AsyncEvent)
	QPNum         func(q QP) uint32 // of a queue pair in an event that is not acknowledged yet

	// Protection domains and memory regions.
	AllocPD   func(c Context) (PD, syscall.Errno)
	DeallocPD func(p PD) syscall.Errno
	RegMR     func(p PD, addr, bytes, iova uint64, access uint32) (Registration, syscall.Errno)
	// nil if missing
	RegDMABufMR func(p PD, off, bytes, iova uint64, fd int, access uint32) (Registration, syscall.Errno)
	DeregMR     func(m MR) syscall.Errno

	// Completion queues. A channel of zero is none. CreateCQ returns the number of entries of the
	// queue.
	CreateCompChannel  func(c Context) (ch CompChannel, fd int, errno syscall.Errno)
	DestroyCompChannel func(ch CompChannel) syscall.Errno
	CreateCQ           func(c Context, entries int, ch CompChannel, vector int) (q CQ, got int, errno syscall.Errno)
	DestroyCQ          func(q CQ) syscall.Errno
	GetCQEvent         func(ch CompChannel) (CQ, syscall.Errno)
	AckCQEvents        func(q CQ, n uint32)
	ReqNotifyCQ        func(q CQ, solicitedOnly bool) syscall.Errno
	// the first n of the array; negative if the queue is lost
	PollCQ func(q CQ, a *WCArray, n int) int

	// Queue pairs. CreateQP and CreateSRQ write the actual capacities to their attributes.
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
