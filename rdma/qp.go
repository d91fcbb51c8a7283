package rdma

// QP is a queue pair of a reliable connection.
type QP interface {
	// Num returns the queue pair's number, which is unique among the device's open queue pairs. It
	// never waits.
	Num() uint32
	// Query returns the state, the attributes last set, and the actual capacities.
	Query() (QPInfo, error)
	// Modify moves the queue pair to a.State. The state determines which other fields of a are used
	// (see QPAttr). Permitted transitions are QPSReset to QPSInit to QPSRTR to QPSRTS, any state
	// except QPSReset to QPSErr, and any state to QPSReset. For other transitions and for
	// attributes out of range, Modify returns ErrInvalid and changes nothing.
	//
	// In QPSErr, posted requests complete with WCWRFlushErr. A move to QPSReset drops posted
	// requests, and completions that were not polled may be lost. When Modify returns, the queue
	// pair no longer accesses memory. If the peer may still send, move to QPSErr and poll the
	// flushed requests before the reset, or call Close instead: if a packet arrives during a reset,
	// rdma_rxe of Linux 6.1 (rewritten in 6.4) frees memory in use and the device stops working.
	Modify(a QPAttr) error
	// PostSend posts wrs in order, as one chain with one doorbell, and returns the number of posted
	// requests. If that is less than len(wrs), the error refers to the first request that was not
	// posted: ErrBusy if the queue is full, ErrInvalid if the request is invalid or the queue pair
	// is not in QPSRTS, QPSSQD or QPSErr.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv is like PostSend for the receive queue. It is permitted from QPSInit on. It returns
	// ErrInvalid if the queue pair has a shared receive queue. Receives posted in QPSErr are
	// flushed, but rdma_rxe may flush them only when the queue pair is reset or closed.
	PostRecv(wrs []RecvWR) (int, error)
	// Close closes the queue pair in any state. When it returns, the queue pair no longer accesses
	// memory. Unfinished requests are dropped, and completions that were not polled may be lost.
	Close() error
}

// QPCaps are the capacities of a queue pair. A device may provide more than requested; Query
// returns the actual values.
type QPCaps struct {
	MaxSendWR      int // capacity of the send queue
	MaxRecvWR      int // capacity of the receive queue; zero with a shared receive queue
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInlineBytes int
}

// QPOptions describe a queue pair.
type QPOptions struct {
	SendCQ CQ // completion queue of the send queue
	RecvCQ CQ // completion queue of the receive queue; may be SendCQ
	SRQ    SRQ
	Caps   QPCaps
	// SignalAll adds SendSignaled to every request of the send queue.
	SignalAll bool
}

// QPAttr are the attributes of a queue pair. Modify uses the fields for the new state and ignores
// the others, so no mask is needed.
type QPAttr struct {
	State QPState

	// For QPSInit.
	Port      int    // from 1
	PKeyIndex int    // index of the partition key
	Access    Access // access of the peer: AccessRemoteWrite, AccessRemoteRead

	// For QPSRTR.
	Address         Address
	PathMTU         MTU
	DestQPNum       uint32
	RQPSN           uint32 // packet sequence number of the peer's first packet, 24 bits
	MaxDestRDAtomic uint8  // concurrent reads that the peer may issue
	// MinRNRTimer is the code of the time that the peer waits if no receive is posted; see
	// RNRTimer.
	MinRNRTimer uint8

	// For QPSRTS.
	SQPSN uint32 // packet sequence number of the first local packet, 24 bits
	// MaxRDAtomic is the number of concurrent reads to issue, at most the peer's MaxDestRDAtomic.
	MaxRDAtomic uint8
	// Timeout is the code of the time to wait for an acknowledgement; see AckTimeout. 0: no limit.
	Timeout uint8
	// RetryCount is the number of retransmissions without an acknowledgement, 0 to 7. With 7,
	// rdma_rxe retries forever.
	RetryCount uint8
	RNRRetry   uint8 // retries while the peer has no receive posted, 0 to 6; 7: no limit
}

// Address is the address of a queue pair's peer.
type Address struct {
	GID          GID // zero: the LID identifies the peer, within an InfiniBand subnet
	GIDIndex     int // index in the local port's GID table
	LID          uint16
	HopLimit     uint8
	TrafficClass uint8
	ServiceLevel uint8
}

// QPInfo is the result of QP.Query.
type QPInfo struct {
	// State is the current state. Fields for states that were never reached are zero.
	Attr QPAttr
	Caps QPCaps
}

// SRQ is a receive queue that several queue pairs share.
type SRQ interface {
	// PostRecv is QP.PostRecv.
	PostRecv(wrs []RecvWR) (int, error)
	// Caps returns the actual capacities. It never waits.
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
