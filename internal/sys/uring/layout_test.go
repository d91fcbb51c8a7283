package uring

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// compile makes C check the body of a translation unit that includes <linux/io_uring.h>.
func compile(t *testing.T, body string) {
	t.Helper()
	cc := ""
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			cc = path
			break
		}
	}
	if cc == "" {
		testkit.Skip(t, "io_uring-headers", "no C compiler")
	}
	check := func(body string) ([]byte, error) {
		src := filepath.Join(t.TempDir(), "check.c")
		text := "#include <stddef.h>\n#include <sys/uio.h>\n#include <linux/io_uring.h>\n" + body
		if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), cc, "-std=gnu11", "-fsyntax-only", "-Werror", src).CombinedOutput()
	}
	if out, err := check(""); err != nil {
		testkit.Skip(t, "io_uring-headers", fmt.Sprintf("%s cannot use <linux/io_uring.h>: %s", cc, firstLines(out, 2)))
	}
	if out, err := check(body); err != nil {
		t.Errorf("%s: %v\n%s", cc, err, firstLines(out, 40))
	}
}

func firstLines(b []byte, n int) []byte {
	lines := bytes.SplitAfterN(b, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil)
}

// layout is where a member of a structure of C is, or the structure's size where no member is named.
type layout struct {
	name, member string
	got          uintptr
}

func layouts() []layout {
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
	return []layout{
		{"io_uring_params", "", unsafe.Sizeof(p)},
		{"io_uring_params", "sq_entries", unsafe.Offsetof(p.sqEntries)},
		{"io_uring_params", "cq_entries", unsafe.Offsetof(p.cqEntries)},
		{"io_uring_params", "flags", unsafe.Offsetof(p.flags)},
		{"io_uring_params", "features", unsafe.Offsetof(p.features)},
		{"io_uring_params", "sq_off", unsafe.Offsetof(p.sqOff)},
		{"io_uring_params", "cq_off", unsafe.Offsetof(p.cqOff)},
		{"io_sqring_offsets", "", unsafe.Sizeof(so)},
		{"io_sqring_offsets", "head", unsafe.Offsetof(so.head)},
		{"io_sqring_offsets", "tail", unsafe.Offsetof(so.tail)},
		{"io_sqring_offsets", "ring_mask", unsafe.Offsetof(so.ringMask)},
		{"io_sqring_offsets", "array", unsafe.Offsetof(so.array)},
		{"io_cqring_offsets", "", unsafe.Sizeof(co)},
		{"io_cqring_offsets", "head", unsafe.Offsetof(co.head)},
		{"io_cqring_offsets", "tail", unsafe.Offsetof(co.tail)},
		{"io_cqring_offsets", "ring_mask", unsafe.Offsetof(co.ringMask)},
		{"io_cqring_offsets", "overflow", unsafe.Offsetof(co.overflow)},
		{"io_cqring_offsets", "cqes", unsafe.Offsetof(co.cqes)},
		{"io_uring_sqe", "", unsafe.Sizeof(s)},
		{"io_uring_sqe", "opcode", unsafe.Offsetof(s.opcode)},
		{"io_uring_sqe", "flags", unsafe.Offsetof(s.flags)},
		{"io_uring_sqe", "fd", unsafe.Offsetof(s.fd)},
		{"io_uring_sqe", "off", unsafe.Offsetof(s.off)},
		{"io_uring_sqe", "addr", unsafe.Offsetof(s.addr)},
		{"io_uring_sqe", "len", unsafe.Offsetof(s.len)},
		{"io_uring_sqe", "fsync_flags", unsafe.Offsetof(s.opFlags)},
		{"io_uring_sqe", "user_data", unsafe.Offsetof(s.userData)},
		{"io_uring_sqe", "buf_index", unsafe.Offsetof(s.bufIndex)},
		{"io_uring_cqe", "", unsafe.Sizeof(c)},
		{"io_uring_cqe", "user_data", unsafe.Offsetof(c.userData)},
		{"io_uring_cqe", "res", unsafe.Offsetof(c.res)},
		{"io_uring_cqe", "flags", unsafe.Offsetof(c.flags)},
		{"iovec", "", unsafe.Sizeof(v)},
		{"iovec", "iov_base", unsafe.Offsetof(v.base)},
		{"iovec", "iov_len", unsafe.Offsetof(v.len)},
		{"io_uring_probe_op", "", unsafe.Sizeof(po)},
		{"io_uring_probe_op", "flags", unsafe.Offsetof(po.flags)},
		{"io_uring_probe", "", unsafe.Offsetof(pr.ops)},
		{"io_uring_probe", "ops_len", unsafe.Offsetof(pr.opsLen)},
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for _, l := range layouts() {
		what := fmt.Sprintf("offsetof(struct %s, %s)", l.name, l.member)
		if l.member == "" {
			what = fmt.Sprintf("sizeof(struct %s)", l.name)
		}
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", what, l.got, what)
	}
	compile(t, c.String())
}

// Where there is no header, a change of a structure by mistake is found by the sum of what the header said.
func TestLayoutsAreThoseOfLinux60(t *testing.T) {
	const want = "843bd66b"
	sum := uint32(1)
	for _, l := range layouts() {
		sum = sum*31 + uint32(l.got)
	}
	if got := fmt.Sprintf("%x", sum); got != want {
		t.Errorf("the offsets and sizes sum up to %s, %s when they were compared with the header", got, want)
	}
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for name, got := range map[string]int64{
		"IORING_OP_NOP":             int64(NOP),
		"IORING_OP_READV":           int64(ReadV),
		"IORING_OP_WRITEV":          int64(WriteV),
		"IORING_OP_FSYNC":           int64(Fsync),
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
		"IOSQE_FIXED_FILE":          sqeFixedFile,
		"IORING_FSYNC_DATASYNC":     fsyncDataSync,
		"IORING_REGISTER_BUFFERS":   registerBuffers,
		"IORING_REGISTER_FILES":     registerFiles,
		"IORING_REGISTER_PROBE":     registerProbe,
		"IO_URING_OP_SUPPORTED":     opSupported,
	} {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	compile(t, c.String())
}
