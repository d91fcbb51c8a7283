package cufile

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var header = headertest.Header{Feature: "cufile-headers", Include: "#include <sys/types.h>\n#include <cufile.h>"}

func layouts() map[string]uintptr {
	var (
		d descriptor
		p Properties
		r Result
	)
	return map[string]uintptr{
		"CUfileDescr_t":           unsafe.Sizeof(d),
		"CUfileDescr_t.type":      unsafe.Offsetof(d.kind),
		"CUfileDescr_t.handle.fd": unsafe.Offsetof(d.fd),
		"CUfileDescr_t.fs_ops":    unsafe.Offsetof(d.fsOps),

		"CUfileDrvProps_t":                            unsafe.Sizeof(p),
		"CUfileDrvProps_t.nvfs.major_version":         unsafe.Offsetof(p.Major),
		"CUfileDrvProps_t.nvfs.minor_version":         unsafe.Offsetof(p.Minor),
		"CUfileDrvProps_t.nvfs.poll_thresh_size":      unsafe.Offsetof(p.PollThreshold),
		"CUfileDrvProps_t.nvfs.max_direct_io_size":    unsafe.Offsetof(p.MaxDirectIO),
		"CUfileDrvProps_t.nvfs.dstatusflags":          unsafe.Offsetof(p.Status),
		"CUfileDrvProps_t.nvfs.dcontrolflags":         unsafe.Offsetof(p.Control),
		"CUfileDrvProps_t.fflags":                     unsafe.Offsetof(p.Features),
		"CUfileDrvProps_t.max_device_cache_size":      unsafe.Offsetof(p.MaxDeviceCache),
		"CUfileDrvProps_t.per_buffer_cache_size":      unsafe.Offsetof(p.PerBufferCache),
		"CUfileDrvProps_t.max_device_pinned_mem_size": unsafe.Offsetof(p.MaxDevicePinned),
		"CUfileDrvProps_t.max_batch_io_size":          unsafe.Offsetof(p.MaxBatch),
		"CUfileDrvProps_t.max_batch_io_timeout_msecs": unsafe.Offsetof(p.MaxBatchTimeoutMillis),

		"CUfileError_t":        unsafe.Sizeof(r),
		"CUfileError_t.err":    unsafe.Offsetof(r.Status),
		"CUfileError_t.cu_err": unsafe.Offsetof(r.CUDA),
		"CUfileHandle_t":       unsafe.Sizeof(Handle(0)),
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, header.Layouts(layouts()))
}

// If there is no header, the checksum of the header's layouts detects an accidental change of a
// structure.
func TestLayoutsAreThoseOfCuFile114(t *testing.T) {
	headertest.Sum(t, layouts(), "9c47bbd7")
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	all := map[string]int64{
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
	}
	for status, name := range names {
		all["CU_FILE_"+name] = int64(status)
	}
	header.Compile(t, headertest.Constants(all))
}

// Constants that older headers do not contain.
func TestYoungerConstantsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, fmt.Sprintf("#ifdef CU_FILE_NVME_P2P_SUPPORTED\n#error it is an enumerator\n#endif\n"+
		"_Static_assert(CU_FILE_NVME_P2P_SUPPORTED == %d, \"\");\n_Static_assert(CUFILE_PARAM_FORCE_COMPAT_MODE == %d, \"\");\n", StatusNVMeP2P, ParamForceCompat))
}

// The parameters and results of each bound symbol. The C compiler rejects an incompatible
// prototype.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, headertest.Signatures(map[string]string{
		"cuFileDriverOpen":          "CUfileError_t (*f)(void)",
		"cuFileDriverClose":         "CUfileError_t (*f)(void)",
		"cuFileDriverGetProperties": "CUfileError_t (*f)(CUfileDrvProps_t *)",
		"cuFileHandleRegister":      "CUfileError_t (*f)(CUfileHandle_t *, CUfileDescr_t *)",
		"cuFileHandleDeregister":    "void (*f)(CUfileHandle_t)",
		"cuFileBufRegister":         "CUfileError_t (*f)(const void *, size_t, int)",
		"cuFileBufDeregister":       "CUfileError_t (*f)(const void *)",
		"cuFileRead":                "ssize_t (*f)(CUfileHandle_t, void *, size_t, off_t, off_t)",
		"cuFileWrite":               "ssize_t (*f)(CUfileHandle_t, const void *, size_t, off_t, off_t)",
		"cuFileReadAsync":           "CUfileError_t (*f)(CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream)",
		"cuFileWriteAsync":          "CUfileError_t (*f)(CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream)",
		"cuFileGetVersion":          "CUfileError_t (*f)(int *)",
		"cuFileGetParameterBool":    "CUfileError_t (*f)(CUFileBoolConfigParameter_t, bool *)",
	}))
}
