package rdma

import "context"

// CompChannel tells when completion queues attached to it have something to poll. Its descriptor is watched by the Go
// runtime's poller: waiting occupies no thread.
type CompChannel interface {
	// Wait returns a CQ of this channel for which RequestNotify was called and where a completion has arrived since. The
	// event is used up: RequestNotify must be called again, and then the queue polled until it is empty, since completions
	// between the event and the new request make no event. A CQ may be returned although nothing is left to poll.
	// It waits until ctx ends and then returns its cause; ErrClosed once the channel is closed, also to those who wait.
	Wait(ctx context.Context) (CQ, error)
	// Close closes the channel. ErrBusy while a CQ is attached.
	Close() error
}

// CQOptions describe a completion queue.
type CQOptions struct {
	Entries int         // completions that it must hold; it may hold more
	Channel CompChannel // where to send events; nil: nowhere, and RequestNotify is refused
	Vector  int         // completion vector, below the device's number of them
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wcs) completions, oldest first, to the start of wcs and returns their number: zero where there
	// is none now. It waits for nothing. An error means that the queue itself is lost; the completions before it count.
	Poll(wcs []WC) (int, error)
	// RequestNotify asks for one event of the channel at the next completion; with solicitedOnly, at the next that failed
	// or whose sender set SendSolicited. Completions that are there already make no event: poll after this call.
	RequestNotify(solicitedOnly bool) error
	// Entries returns how many completions the queue holds. Never waits.
	Entries() int
	// Close frees the queue. ErrBusy while a QP is attached.
	Close() error
}

// WC is a work completion.
type WC struct {
	WRID      uint64   // of the request
	Status    WCStatus // unless this is WCSuccess, only WRID, VendorErr, QPNum and Cause mean something
	Opcode    WCOpcode
	VendorErr uint32 // the device's own word for a failure
	ByteLen   uint32 // bytes received or read
	Imm       uint32 // immediate data in host byte order, with WCWithImm
	QPNum     uint32 // of the local queue pair
	Flags     WCFlags
	// Cause is what the provider knows of a failure beyond the status: nil with a NIC, the error of the software that
	// stands in for one with rdma/soft.
	Cause error
}

// Err returns a *WCError where the completion is of a failure, else nil.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{WRID: wc.WRID, Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr, QPNum: wc.QPNum, Cause: wc.Cause}
}
