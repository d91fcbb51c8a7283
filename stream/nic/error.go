package nic

import (
	"fmt"

	"github.com/kvlane/kvlane/rdma"
)

// RequestError describes a request that failed on a NIC.
type RequestError struct {
	NIC        string // name
	QPNum      uint32 // number of the queue pair
	Opcode     rdma.WROpcode
	Bytes      int64
	SGEs       int    // scatter-gather entries on the local side
	Local      uint64 // address of the first entry
	RemoteAddr uint64
	RKey       uint32
	WC         *rdma.WCError // status, vendor_err, and the cause if the provider has one
}

// Error describes the request and its failure.
func (e *RequestError) Error() string {
	return fmt.Sprintf("%s of %d bytes in %d pieces, local %#x, remote %#x key %#x, on NIC %s queue pair %d: %v",
		e.Opcode, e.Bytes, e.SGEs, e.Local, e.RemoteAddr, e.RKey, e.NIC, e.QPNum, e.WC)
}

// Unwrap returns the failure of the request.
func (e *RequestError) Unwrap() error { return e.WC }

// failedRequest describes the request at position seq, which failed with wc.
func (q *pair) failedRequest(seq uint64, wc *rdma.WC) *RequestError {
	w := &q.wrs[seq&q.mask]
	e := &RequestError{
		NIC: q.rail.reg.Name(), QPNum: q.QP.Num(), Opcode: w.Opcode, Bytes: w.Bytes(), SGEs: len(w.SGEs),
		RemoteAddr: w.RemoteAddr, RKey: w.RKey,
		WC: &rdma.WCError{WRID: wc.WRID, Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr, QPNum: wc.QPNum, Cause: wc.Cause},
	}
	if len(w.SGEs) > 0 {
		e.Local = w.SGEs[0].Addr
	}
	return e
}
