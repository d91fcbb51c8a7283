package uring

import "fmt"

// Opcode is the operation of a request.
type Opcode uint8

// Opcodes. For registered buffers, Read and Write are replaced by readFixed and writeFixed. NOP is
// for measuring the overhead of the ring.
const (
	NOP        Opcode = 0
	readFixed  Opcode = 4
	writeFixed Opcode = 5
	Read       Opcode = 22
	Write      Opcode = 23
)

// needed lists the required opcodes.
var needed = []Opcode{readFixed, writeFixed, Read, Write}

var opcodeNames = map[Opcode]string{NOP: "nop", readFixed: "read", writeFixed: "write", Read: "read", Write: "write"}

// String returns the name of the opcode for errors.
func (o Opcode) String() string {
	if s := opcodeNames[o]; s != "" {
		return s
	}
	return fmt.Sprintf("opcode(%d)", uint8(o))
}

// Constants from the kernel header.
const (
	offSQRing = 0
	offSQEs   = 0x10000000

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1
	// the request's data, except buffers, may be freed after submission
	featStable = 1 << 2

	enterGetEvents = 1 << 0

	registerBuffers = 0
	registerProbe   = 8

	opSupported = 1 << 0
)

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, resv1 uint32
	resv2                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, resv1 uint32
	resv2                                                           uint64
}

// Params is the argument and result of io_uring_setup.
type Params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	resv                                                                   [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	len, opFlags  uint32
	userData      uint64
	bufIndex      uint16
	personality   uint16
	fileIndex     uint32
	addr3, pad    uint64
}

type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// iovec is the struct iovec of <sys/uio.h>.
type iovec struct{ base, len uint64 }

type probeOp struct {
	op, resv uint8
	flags    uint16
	resv2    uint32
}

type probe struct {
	lastOp, opsLen uint8
	resv           uint16
	resv2          [3]uint32
	ops            [256]probeOp
}
