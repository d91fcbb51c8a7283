package ibverbs

import "syscall"

// API is a table of the library's functions. Load sets the fields; tests may set their own
// functions. The fields must not change while the API is in use. Each field is named after its C
// function; comments describe differences. If an errno is not zero, the other results are
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

	// Events of a device. Every event must be acknowledged, otherwise destroying its object blocks
	// forever.
	AsyncFD       func(c Context) int
	GetAsyncEvent func(c Context) (AsyncEvent, syscall.Errno)
	AckAsyncEvent func(e AsyncEvent)
	QPNum         func(q QP) uint32 // of a queue pair whose event is not acknowledged yet

	// Protection domains and memory regions.
	AllocPD   func(c Context) (PD, syscall.Errno)
	DeallocPD func(p PD) syscall.Errno
	RegMR     func(p PD, addr, bytes, iova uint64, access uint32) (Registration, syscall.Errno)
	// RegDMABufMR is nil if the library does not have the function.
	RegDMABufMR func(p PD, off, bytes, iova uint64, fd int, access uint32) (Registration, syscall.Errno)
	DeregMR     func(m MR) syscall.Errno

	// Completion queues. A zero channel means no channel. CreateCQ also returns the actual number
	// of entries.
	CreateCompChannel  func(c Context) (ch CompChannel, fd int, errno syscall.Errno)
	DestroyCompChannel func(ch CompChannel) syscall.Errno
	CreateCQ           func(c Context, entries int, ch CompChannel, vector int) (q CQ, got int, errno syscall.Errno)
	DestroyCQ          func(q CQ) syscall.Errno
	GetCQEvent         func(ch CompChannel) (CQ, syscall.Errno)
	AckCQEvents        func(q CQ, n uint32)
	ReqNotifyCQ        func(q CQ, solicitedOnly bool) syscall.Errno
	// PollCQ writes to the first elements of a and returns their number. A negative result means
	// that the queue is unusable.
	PollCQ func(q CQ, a *WCArray, n int) int

	// Queue pairs. CreateQP and CreateSRQ store the actual capacities in the attributes.
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
