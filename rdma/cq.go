package rdma

import "context"

// CompChannel reports completions of the completion queues attached to it. The Go runtime's poller
// watches its descriptor, so a wait occupies no thread.
type CompChannel interface {
	// Wait returns a CQ that received a completion after its last RequestNotify, and consumes the
	// event. Afterwards the caller calls RequestNotify and then polls the queue until it is empty,
	// because completions that arrive before RequestNotify cause no event. The queue may already be
	// empty. Wait returns the cause of ctx when ctx ends, and ErrClosed after Close.
	Wait(ctx context.Context) (CQ, error)
	// Close closes the channel. It returns ErrBusy while a CQ is attached.
	Close() error
}

// CQOptions describe a completion queue.
type CQOptions struct {
	Entries int // minimum capacity in completions
	// channel for events; without it, RequestNotify returns an error
	Channel CompChannel
	Vector  int // completion vector, below the device's number of vectors
}

// CQ is a completion queue.
type CQ interface {
	// Poll stores up to len(wcs) completions in wcs, oldest first, and returns their number, which
	// may be 0. It does not wait. After an error the queue is unusable, but the returned
	// completions are valid.
	Poll(wcs []WC) (int, error)
	// RequestNotify requests one event on the channel for the next completion. With solicitedOnly,
	// only a failed request or a request with SendSolicited causes the event. Completions already
	// in the queue cause no event, so the caller must poll after this call.
	RequestNotify(solicitedOnly bool) error
	// Entries returns the capacity of the queue. It never waits.
	Entries() int
	// Close closes the queue. It returns ErrBusy while a QP is attached.
	Close() error
}

// WC is a work completion.
type WC struct {
	WRID uint64 // WRID of the request
	// unless it is WCSuccess, only WRID, VendorErr, QPNum and Cause are valid
	Status    WCStatus
	Opcode    WCOpcode
	VendorErr uint32 // error code of the device
	ByteLen   uint32 // bytes received or read
	Imm       uint32 // immediate data in host byte order, if WCWithImm is set
	QPNum     uint32 // number of the local queue pair
	Flags     WCFlags
	// Cause is the error behind a failed request of rdma/soft. It is nil for hardware.
	Cause error
}

// Err returns a *WCError for a failed request, else nil.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{WRID: wc.WRID, Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr, QPNum: wc.QPNum, Cause: wc.Cause}
}
