package rdma

// QP is a queue pair of a reliable connection.
type QP interface {
	// Num returns the queue pair's number, unique within the device while it is open. Never waits.
	Num() uint32
	// Query returns the state, the attributes last set, and the capacities that the device gave.
	Query() (QPInfo, error)
	// Modify moves the queue pair to a.State, which says what other fields of a count (see QPAttr). The steps are those of
	// the verbs: QPSReset to QPSInit to QPSRTR to QPSRTS, any state but QPSReset to QPSErr, any state to QPSReset.
	// ErrInvalid for another step or an attribute out of range, and then nothing changes. To QPSErr completes what was
	// posted with WCWRFlushErr; to QPSReset forgets it: completions not polled yet are lost or come, and when Modify has
	// returned nothing of the queue pair touches memory any more. Where the peer may be sending still, move to QPSErr and
	// poll what is flushed first, or Close: when a packet arrives during a reset, rdma_rxe of Linux 6.1 (its tasks were
	// rewritten in 6.4) frees memory in use and loses the device.
	Modify(a QPAttr) error
	// PostSend posts wrs, in order, as one chain with one doorbell, and returns how many were accepted. Where that is not
	// all of them the error says why the next was not: ErrBusy where the queue is full, ErrInvalid for a request that is
	// wrong or a queue pair that is not in QPSRTS, QPSSQD or QPSErr. What was accepted stays accepted.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv is PostSend for the receive queue; it takes requests from QPSInit on. ErrInvalid where the queue pair has
	// a shared receive queue. What is posted in QPSErr is flushed, though a device that posting does not wake (rdma_rxe)
	// may let it lie until the queue pair is reset or closed.
	PostRecv(wrs []RecvWR) (int, error)
	// Close frees the queue pair, in any state. When it has returned, nothing of it touches memory any more; requests
	// that had not completed are forgotten, and completions not polled yet are lost or come.
	Close() error
}

// QPCaps are the capacities of a queue pair. A device may give more than was asked for; Query says what it gave.
type QPCaps struct {
	MaxSendWR      int // requests that the send queue holds
	MaxRecvWR      int // requests that the receive queue holds; zero with a shared one
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInlineBytes int
}

// QPOptions describe a queue pair.
type QPOptions struct {
	SendCQ CQ // where sends complete
	RecvCQ CQ // where receives complete; may be SendCQ
	SRQ    SRQ
	Caps   QPCaps
	// SignalAll makes every request of the send queue complete, as if each had SendSignaled.
	SignalAll bool
}

// QPAttr are the attributes of a queue pair. Modify looks at those of the state that it moves to, and at no other:
// unlike the verbs there is no mask.
type QPAttr struct {
	State QPState

	// Of QPSInit.
	Port      int    // from 1
	PKeyIndex int    // of the partition key
	Access    Access // what peers may do: AccessRemoteWrite, AccessRemoteRead

	// Of QPSRTR.
	Address         Address
	PathMTU         MTU
	DestQPNum       uint32
	RQPSN           uint32 // the peer's first packet sequence number, 24 bits
	MaxDestRDAtomic uint8  // reads of the peer to answer at once
	MinRNRTimer     uint8  // how long the peer shall wait when no receive is posted; RNRTimer gives durations

	// Of QPSRTS.
	SQPSN       uint32 // the own first packet sequence number, 24 bits
	MaxRDAtomic uint8  // reads to have outstanding at once; at most the peer's MaxDestRDAtomic
	Timeout     uint8  // how long to wait for an answer before trying again; AckTimeout gives durations, 0 is for ever
	RetryCount  uint8  // times to try again when there is no answer, 0 to 7; rdma_rxe takes 7 as without end
	RNRRetry    uint8  // times to try again when the peer has no receive posted, 0 to 6; 7 is without end
}

// Address says where a queue pair's peer is.
type Address struct {
	GID          GID // zero: by LID alone, within an InfiniBand subnet
	GIDIndex     int // of the own port's table
	LID          uint16
	HopLimit     uint8
	TrafficClass uint8
	ServiceLevel uint8
}

// QPInfo is what QP.Query answers.
type QPInfo struct {
	Attr QPAttr // State is the present one; fields of states never reached are zero
	Caps QPCaps
}

// SRQ is a receive queue that queue pairs share.
type SRQ interface {
	// PostRecv is QP.PostRecv.
	PostRecv(wrs []RecvWR) (int, error)
	// Caps returns the capacities that the device gave. Never waits.
	Caps() SRQCaps
	// Close frees the queue, and what was posted and not used completes nowhere. ErrBusy while a QP is attached.
	Close() error
}

// SRQCaps are the capacities of a shared receive queue.
type SRQCaps struct {
	MaxWR  int
	MaxSGE int
}
