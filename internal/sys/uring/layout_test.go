package uring

import (
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var header = headertest.Header{Feature: "io_uring-headers", Include: "#include <sys/uio.h>\n#include <linux/io_uring.h>", Struct: true}

func layouts() map[string]uintptr {
	var (
		p  Params
		so sqOffsets
		co cqOffsets
		s  sqe
		c  cqe
		v  iovec
		po probeOp
		pr probe
	)
	return map[string]uintptr{
		"io_uring_params":             unsafe.Sizeof(p),
		"io_uring_params.sq_entries":  unsafe.Offsetof(p.sqEntries),
		"io_uring_params.cq_entries":  unsafe.Offsetof(p.cqEntries),
		"io_uring_params.flags":       unsafe.Offsetof(p.flags),
		"io_uring_params.features":    unsafe.Offsetof(p.features),
		"io_uring_params.sq_off":      unsafe.Offsetof(p.sqOff),
		"io_uring_params.cq_off":      unsafe.Offsetof(p.cqOff),
		"io_sqring_offsets":           unsafe.Sizeof(so),
		"io_sqring_offsets.head":      unsafe.Offsetof(so.head),
		"io_sqring_offsets.tail":      unsafe.Offsetof(so.tail),
		"io_sqring_offsets.ring_mask": unsafe.Offsetof(so.ringMask),
		"io_sqring_offsets.array":     unsafe.Offsetof(so.array),
		"io_cqring_offsets":           unsafe.Sizeof(co),
		"io_cqring_offsets.head":      unsafe.Offsetof(co.head),
		"io_cqring_offsets.tail":      unsafe.Offsetof(co.tail),
		"io_cqring_offsets.ring_mask": unsafe.Offsetof(co.ringMask),
		"io_cqring_offsets.overflow":  unsafe.Offsetof(co.overflow),
		"io_cqring_offsets.cqes":      unsafe.Offsetof(co.cqes),
		"io_uring_sqe":                unsafe.Sizeof(s),
		"io_uring_sqe.opcode":         unsafe.Offsetof(s.opcode),
		"io_uring_sqe.flags":          unsafe.Offsetof(s.flags),
		"io_uring_sqe.fd":             unsafe.Offsetof(s.fd),
		"io_uring_sqe.off":            unsafe.Offsetof(s.off),
		"io_uring_sqe.addr":           unsafe.Offsetof(s.addr),
		"io_uring_sqe.len":            unsafe.Offsetof(s.len),
		"io_uring_sqe.fsync_flags":    unsafe.Offsetof(s.opFlags),
		"io_uring_sqe.user_data":      unsafe.Offsetof(s.userData),
		"io_uring_sqe.buf_index":      unsafe.Offsetof(s.bufIndex),
		"io_uring_cqe":                unsafe.Sizeof(c),
		"io_uring_cqe.user_data":      unsafe.Offsetof(c.userData),
		"io_uring_cqe.res":            unsafe.Offsetof(c.res),
		"io_uring_cqe.flags":          unsafe.Offsetof(c.flags),
		"iovec":                       unsafe.Sizeof(v),
		"iovec.iov_base":              unsafe.Offsetof(v.base),
		"iovec.iov_len":               unsafe.Offsetof(v.len),
		"io_uring_probe_op":           unsafe.Sizeof(po),
		"io_uring_probe_op.flags":     unsafe.Offsetof(po.flags),
		"io_uring_probe":              unsafe.Offsetof(pr.ops),
		"io_uring_probe.ops_len":      unsafe.Offsetof(pr.opsLen),
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, header.Layouts(layouts()))
}

// If there is no header, the checksum of the header's layouts detects an accidental change of a
// structure.
func TestLayoutsAreThoseOfLinux60(t *testing.T) {
	headertest.Sum(t, layouts(), "94472b7d")
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, headertest.Constants(map[string]int64{
		"IORING_OP_NOP":             int64(NOP),
		"IORING_OP_READ_FIXED":      int64(readFixed),
		"IORING_OP_WRITE_FIXED":     int64(writeFixed),
		"IORING_OP_READ":            int64(Read),
		"IORING_OP_WRITE":           int64(Write),
		"IORING_OFF_SQ_RING":        offSQRing,
		"IORING_OFF_SQES":           offSQEs,
		"IORING_FEAT_SINGLE_MMAP":   featSingleMmap,
		"IORING_FEAT_NODROP":        featNoDrop,
		"IORING_FEAT_SUBMIT_STABLE": featStable,
		"IORING_ENTER_GETEVENTS":    enterGetEvents,
		"IORING_REGISTER_BUFFERS":   registerBuffers,
		"IORING_REGISTER_PROBE":     registerProbe,
		"IO_URING_OP_SUPPORTED":     opSupported,
	}))
}
