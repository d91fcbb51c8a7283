package cufile

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

// compiler returns a C compiler, or skips the test for the lack of feature.
func compiler(t *testing.T, feature string) string {
	t.Helper()
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testkit.Skip(t, feature, "no C compiler")
	return ""
}

// compile makes C check the body of a translation unit that includes <cufile.h>, which the compiler finds by itself or by
// C_INCLUDE_PATH, as it does <cuda.h>, which that includes.
func compile(t *testing.T, body string) {
	t.Helper()
	cc := compiler(t, "cufile-headers")
	check := func(body string) ([]byte, error) {
		src := filepath.Join(t.TempDir(), "check.c")
		// The library's header uses loff_t, and declares functions that older C libraries do not have in strict modes.
		if err := os.WriteFile(src, []byte("#define _GNU_SOURCE\n#include <stddef.h>\n#include <sys/types.h>\n#include <cufile.h>\n"+body), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), cc, "-std=gnu11", "-fsyntax-only", "-Werror", "-I/usr/local/cuda/include", src).CombinedOutput()
	}
	if out, err := check(""); err != nil {
		testkit.Skip(t, "cufile-headers", fmt.Sprintf("%s cannot use <cufile.h>: %s", cc, firstLines(out, 2)))
	}
	if out, err := check(body); err != nil {
		t.Errorf("%s: %v\n%s", cc, err, firstLines(out, 40))
	}
}

func firstLines(b []byte, n int) []byte {
	lines := bytes.SplitAfterN(b, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil)
}

// layout is where a member of a type of C is, or the type's size where no member is named.
type layout struct {
	name, member string
	got          uintptr
}

func layouts() []layout {
	var (
		d descriptor
		p Properties
		r Result
	)
	return []layout{
		{"CUfileDescr_t", "", unsafe.Sizeof(d)},
		{"CUfileDescr_t", "type", unsafe.Offsetof(d.kind)},
		{"CUfileDescr_t", "handle.fd", unsafe.Offsetof(d.fd)},
		{"CUfileDescr_t", "fs_ops", unsafe.Offsetof(d.fsOps)},

		{"CUfileDrvProps_t", "", unsafe.Sizeof(p)},
		{"CUfileDrvProps_t", "nvfs.major_version", unsafe.Offsetof(p.Major)},
		{"CUfileDrvProps_t", "nvfs.minor_version", unsafe.Offsetof(p.Minor)},
		{"CUfileDrvProps_t", "nvfs.poll_thresh_size", unsafe.Offsetof(p.PollThreshold)},
		{"CUfileDrvProps_t", "nvfs.max_direct_io_size", unsafe.Offsetof(p.MaxDirectIO)},
		{"CUfileDrvProps_t", "nvfs.dstatusflags", unsafe.Offsetof(p.Status)},
		{"CUfileDrvProps_t", "nvfs.dcontrolflags", unsafe.Offsetof(p.Control)},
		{"CUfileDrvProps_t", "fflags", unsafe.Offsetof(p.Features)},
		{"CUfileDrvProps_t", "max_device_cache_size", unsafe.Offsetof(p.MaxDeviceCache)},
		{"CUfileDrvProps_t", "per_buffer_cache_size", unsafe.Offsetof(p.PerBufferCache)},
		{"CUfileDrvProps_t", "max_device_pinned_mem_size", unsafe.Offsetof(p.MaxDevicePinned)},
		{"CUfileDrvProps_t", "max_batch_io_size", unsafe.Offsetof(p.MaxBatch)},
		{"CUfileDrvProps_t", "max_batch_io_timeout_msecs", unsafe.Offsetof(p.MaxBatchTimeoutMillis)},

		{"CUfileError_t", "", unsafe.Sizeof(r)},
		{"CUfileError_t", "err", unsafe.Offsetof(r.Status)},
		{"CUfileError_t", "cu_err", unsafe.Offsetof(r.CUDA)},
		{"CUfileHandle_t", "", unsafe.Sizeof(Handle(0))},
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for _, l := range layouts() {
		what := fmt.Sprintf("offsetof(%s, %s)", l.name, l.member)
		if l.member == "" {
			what = fmt.Sprintf("sizeof(%s)", l.name)
		}
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", what, l.got, what)
	}
	compile(t, c.String())
}

// Where there is no header, a change of a structure by mistake is found by the sum of what the header said.
func TestLayoutsAreThoseOfCuFile114(t *testing.T) {
	const want = "7b05e47f"
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
		"CU_FILE_HANDLE_TYPE_OPAQUE_FD": handleTypeFD,
		"CU_FILE_LUSTRE_SUPPORTED":      StatusLustre,
		"CU_FILE_WEKAFS_SUPPORTED":      StatusWeka,
		"CU_FILE_NFS_SUPPORTED":         StatusNFS,
		"CU_FILE_GPFS_SUPPORTED":        StatusGPFS,
		"CU_FILE_NVME_SUPPORTED":        StatusNVMe,
		"CU_FILE_NVMEOF_SUPPORTED":      StatusNVMeOF,
		"CU_FILE_SCSI_SUPPORTED":        StatusSCSI,
		"CU_FILE_BEEGFS_SUPPORTED":      StatusBeeGFS,
		"CU_FILE_ALLOW_COMPAT_MODE":     ControlAllowCompat,
	} {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	for status, name := range names {
		fmt.Fprintf(&c, "_Static_assert(CU_FILE_%s == %d, \"%s\");\n", name, status, name)
	}
	compile(t, c.String())
}

// What older headers do not have.
func TestYoungerConstantsAreThoseOfTheHeader(t *testing.T) {
	compile(t, fmt.Sprintf("#ifdef CU_FILE_NVME_P2P_SUPPORTED\n#error it is an enumerator\n#endif\n"+
		"_Static_assert(CU_FILE_NVME_P2P_SUPPORTED == %d, \"\");\n_Static_assert(CUFILE_PARAM_FORCE_COMPAT_MODE == %d, \"\");\n", StatusNVMeP2P, ParamForceCompat))
}

// The parameters and results that are bound, for each symbol that is looked up. An incompatible prototype does not compile.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for i, f := range []struct{ result, name, params string }{
		{"CUfileError_t ", "cuFileDriverOpen", "void"},
		{"CUfileError_t ", "cuFileDriverClose", "void"},
		{"CUfileError_t ", "cuFileDriverGetProperties", "CUfileDrvProps_t *"},
		{"CUfileError_t ", "cuFileHandleRegister", "CUfileHandle_t *, CUfileDescr_t *"},
		{"void ", "cuFileHandleDeregister", "CUfileHandle_t"},
		{"CUfileError_t ", "cuFileBufRegister", "const void *, size_t, int"},
		{"CUfileError_t ", "cuFileBufDeregister", "const void *"},
		{"ssize_t ", "cuFileRead", "CUfileHandle_t, void *, size_t, off_t, off_t"},
		{"ssize_t ", "cuFileWrite", "CUfileHandle_t, const void *, size_t, off_t, off_t"},
		{"CUfileError_t ", "cuFileReadAsync", "CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream"},
		{"CUfileError_t ", "cuFileWriteAsync", "CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream"},
		{"CUfileError_t ", "cuFileStreamRegister", "CUstream, unsigned"},
		{"CUfileError_t ", "cuFileStreamDeregister", "CUstream"},
		{"long ", "cuFileUseCount", "void"},
		{"CUfileError_t ", "cuFileGetVersion", "int *"},
		{"CUfileError_t ", "cuFileGetParameterBool", "CUFileBoolConfigParameter_t, bool *"},
	} {
		fmt.Fprintf(&c, "void check%d(void) { %s(*f)(%s) = %s; (void)f; }\n", i, f.result, f.params, f.name)
	}
	compile(t, c.String())
}
