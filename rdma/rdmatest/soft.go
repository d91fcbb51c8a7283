package rdmatest

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// Loopback connects q, a queue pair of d in QPSReset, to itself.
func Loopback(d rdma.Device, q rdma.QP, o rdma.ConnectOptions) error {
	self, err := rdma.LocalEndpoint(d, q, o)
	if err != nil {
		return err
	}
	return rdma.Connect(d, q, o, self)
}

// NullMover completes every transfer at once and copies no bytes.
type NullMover struct{}

// Reaches accepts all memory.
func (NullMover) Reaches(*mem.Region) error { return nil }

// Move completes the transfer.
func (NullMover) Move(t *soft.Transfer) { t.Done(nil) }

// Verbs returns the operation names of soft.Options.Faults except those for the execution of
// requests.
func Verbs() []string {
	return []string{
		soft.OpOpen, soft.OpQueryPort, soft.OpQueryGID, soft.OpAllocPD, soft.OpCreateChannel, soft.OpCreateCQ, soft.OpRegMR, soft.OpCreateQP, soft.OpCreateSRQ, soft.OpQueryQP,
		soft.OpModifyQP, soft.OpPostSend, soft.OpPostRecv, soft.OpPoll, soft.OpNotify, soft.OpWaitChannel, soft.OpWaitEvent, soft.OpClose,
	}
}
