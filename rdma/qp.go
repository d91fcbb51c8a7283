package rdma

// QP is a queue pair of a reliable connection.
type QP interface {
	// Num returns the queue pair's number, which is unique among the open ones of the device. It
	// never waits.
	Num() uint32
	// Query returns the state, the attributes last set, and the capacities that the device gave.
	Query() (QPInfo, error)
	// Modify moves the queue pair to a.State. The state determines which other fields of a are used
	// (see QPAttr). Permitted steps are QPSReset to QPSInit to QPSRTR to QPSRTS, any state but
	// QPSReset to QPSErr, and any state to QPSReset. For another step or an attribute out of range,
	// Modify returns ErrInvalid and changes nothing. QPSErr completes posted requests with
	// WCWRFlushErr. QPSReset forgets them; completions that are not polled may be lost, and when
	// Modify returns, the queue pair no longer touches memory. If the peer may still be sending,
	// move to QPSErr and poll the flushed requests first, or call Close: when a packet arrives
	// during a reset, rdma_rxe of Linux 6.1 (rewritten in 6.4) frees memory in use and loses the
	// device.
	Modify(a QPAttr) error
	// PostSend posts wrs in order, as one chain with one doorbell, and returns the number of
	// accepted ones. If it accepts fewer, the error is that of the next one: ErrBusy if the queue
	// is full, ErrInvalid if the request is wrong or the queue pair is not in QPSRTS, QPSSQD or
	// QPSErr. Accepted requests stay posted.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv is PostSend for the receive queue, permitted from QPSInit on. It returns ErrInvalid
	// if the queue pair has a shared receive queue. Receives posted in QPSErr are flushed. A device
	// that is not woken by posting (rdma_rxe) may keep them until the queue pair is reset or
	// closed.
	PostRecv(wrs []RecvWR) (int, error)
	// Close closes the queue pair in any state. When it returns, the queue pair no longer touches
	// memory. Unfinished requests are forgotten, and completions that are not polled may be lost.
	Close() error
}

// QPCaps are the capacities of a queue pair. A device may give more than requested; Query returns
// the actual values.
type QPCaps struct {
	MaxSendWR      int // requests that the send queue holds
	MaxRecvWR      int // requests that the receive queue holds; zero with a shared queue
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInlineBytes int
}

// QPOptions describe a queue pair.
type QPOptions struct {
	SendCQ CQ // for completions of sends
	RecvCQ CQ // for completions of receives; may be SendCQ
	SRQ    SRQ
	Caps   QPCaps
	// SignalAll makes every request of the send queue complete, as if each had SendSignaled.
	SignalAll bool
}

// QPAttr are the attributes of a queue pair. Modify uses those of the state that it moves to, and
// ignores the others; unlike the verbs it has no mask.
type QPAttr struct {
	State QPState

	// For QPSInit.
	Port      int    // from 1
	PKeyIndex int    // of the partition key
	Access    Access // rights of peers: AccessRemoteWrite, AccessRemoteRead

	// For QPSRTR.
	Address         Address
	PathMTU         MTU
	DestQPNum       uint32
	RQPSN           uint32 // the peer's first packet sequence number, 24 bits
	MaxDestRDAtomic uint8  // concurrent reads of the peer
	// Code of the time that the peer waits if no receive is posted; see RNRTimer.
	MinRNRTimer uint8

	// For QPSRTS.
	SQPSN       uint32 // the first local packet sequence number, 24 bits
	MaxRDAtomic uint8  // concurrent reads to issue; at most the peer's MaxDestRDAtomic
	// Code of the time to wait for an acknowledgement; see AckTimeout; 0: no limit.
	Timeout uint8
	// Retries without an acknowledgement, 0 to 7; rdma_rxe retries indefinitely with 7.
	RetryCount uint8
	RNRRetry   uint8 // retries while the peer has no receive posted, 0 to 6; 7: no limit
}

// Address is the address of a queue pair's peer.
type Address struct {
	GID          GID // zero: by LID only, within an InfiniBand subnet
	GIDIndex     int // in the local port's table
	LID          uint16
	HopLimit     uint8
	TrafficClass uint8
	ServiceLevel uint8
}

// QPInfo is the result of QP.Query.
type QPInfo struct {
	Attr QPAttr // State is the current one; fields of states never reached are zero
	Caps QPCaps
}

// SRQ is a receive queue that several queue pairs use.
type SRQ interface {
	// PostRecv is QP.PostRecv.
	PostRecv(wrs []RecvWR) (int, error)
	// Caps returns the capacities that the device gave. It never waits.
	Caps() SRQCaps
	// Close closes the queue. Unused receives do not complete. It returns ErrBusy while a QP is
	// attached.
	Close() error
}

// SRQCaps are the capacities of a shared receive queue.
type SRQCaps struct {
	MaxWR  int
	MaxSGE int
}
