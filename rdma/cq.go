package rdma

import "context"

// CompChannel reports completions of the completion queues attached to it. The Go runtime's poller
// watches its descriptor, so a wait occupies no thread.
type CompChannel interface {
	// Wait returns a CQ of this channel with a completion since its last RequestNotify. This
	// consumes the event. The caller calls RequestNotify again and then polls the queue until it is
	// empty, since completions in between cause no event. The queue may be empty already. If ctx
	// ends, Wait returns its cause. After Close it returns ErrClosed.
	Wait(ctx context.Context) (CQ, error)
	// Close closes the channel. It returns ErrBusy while a CQ is attached.
	Close() error
}

// CQOptions describe a completion queue.
type CQOptions struct {
	Entries int         // minimum number of completions that it holds
	Channel CompChannel // channel for events; nil: none, and RequestNotify is refused
	Vector  int         // completion vector, below the device's number of vectors
}

// CQ is a completion queue.
type CQ interface {
	// Poll stores up to len(wcs) completions in wcs, oldest first, and returns their number, which
	// may be 0. It does not wait. An error means that the queue is lost; the returned completions
	// are valid.
	Poll(wcs []WC) (int, error)
	// RequestNotify requests one event of the channel for the next completion. With solicitedOnly
	// it requests one for the next failure or the next completion that the sender marked with
	// SendSolicited. Present completions cause no event: poll after this call.
	RequestNotify(solicitedOnly bool) error
	// Entries returns the capacity of the queue. It never waits.
	Entries() int
	// Close closes the queue. It returns ErrBusy while a QP is attached.
	Close() error
}

// WC is a work completion.
type WC struct {
	WRID      uint64   // of the request
	Status    WCStatus // unless it is WCSuccess, only WRID, VendorErr, QPNum and Cause are valid
	Opcode    WCOpcode
	VendorErr uint32 // the device's code of a failure
	ByteLen   uint32 // bytes received or read
	Imm       uint32 // immediate data in host byte order, if WCWithImm is set
	QPNum     uint32 // of the local queue pair
	Flags     WCFlags
	// Cause is additional information on a failure: nil for a NIC, an error of the software for
	// rdma/soft.
	Cause error
}

// Err returns a *WCError for a failed request, else nil.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{WRID: wc.WRID, Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr, QPNum: wc.QPNum, Cause: wc.Cause}
}
