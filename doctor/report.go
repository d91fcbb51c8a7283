package doctor

import (
	"errors"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Answer is Yes, No or Unknown.
type Answer string

// The answers.
const (
	Yes Answer = "yes"
	No  Answer = "no"
	// inconclusive, for example for lack of permission or after an unexpected error
	Unknown Answer = "unknown"
)

// Finding is an answer with its reason and remedy.
type Finding struct {
	Answer Answer `json:"answer"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"` // action that would make the answer yes, if known
	// Brief is a shorter reason for reports in text. Empty: use Reason.
	Brief string `json:"-"`
}

// Answered converts the error of a probe to a Finding: nil to Yes, ErrNotSupported to No, other
// errors to Unknown. remedy is used unless the answer is Yes.
func Answered(err error, remedy string) Finding {
	if err == nil {
		return Finding{Answer: Yes}
	}
	f := Finding{Answer: Unknown, Reason: err.Error(), Remedy: remedy}
	if errors.Is(err, errdefs.ErrNotSupported) {
		f.Answer = No
	}
	var brief interface{ Brief() string }
	if errors.As(err, &brief) {
		f.Brief = brief.Brief()
	}
	return f
}

// of returns f with part and a colon before its reason.
func (f Finding) of(part string) Finding {
	f.Reason = part + ": " + f.Reason
	if f.Brief != "" {
		f.Brief = part + ": " + f.Brief
	}
	return f
}

// Report is the result of Examine.
type Report struct {
	Host        Host         `json:"host"`
	NVIDIA      NVIDIA       `json:"nvidia"`
	RDMA        RDMA         `json:"rdma"`
	CuFile      CuFile       `json:"cufile"`
	IOUring     Finding      `json:"io_uring"`
	HugePages   []HugePages  `json:"huge_pages"`
	LockedMem   LockedMemory `json:"locked_memory"`
	FileSystems []FileSystem `json:"file_systems"`
	SharedMem   FileSystem   `json:"shared_memory"`
	Paths       []Path       `json:"paths"`
	// Required are the answers to Options.Require, in the same order.
	Required []Path `json:"required,omitempty"`
}

// Host describes the machine except its devices.
type Host struct {
	Kernel         string `json:"kernel"`
	CPUs           int    `json:"cpus"`       // available to this process
	NUMANodes      int    `json:"numa_nodes"` // 0 if unknown
	MemoryBytes    int64  `json:"memory_bytes"`
	AvailableBytes int64  `json:"available_bytes"`
	// MemoryLimit is the memory limit in bytes and PIDLimit the limit on processes and threads.
	// Each is the limit with the least remaining among the process's cgroup and its ancestors.
	MemoryLimit CgroupLimit `json:"cgroup_memory"`
	PIDLimit    CgroupLimit `json:"cgroup_pids"`
	OpenFiles   OpenFiles   `json:"open_files"`
}

// CgroupLimit is a hard limit set by a cgroup. If there is no limit, File is empty.
type CgroupLimit struct {
	File string `json:"file,omitempty"`
	Max  int64  `json:"max"`
	Used int64  `json:"used"`
}

// OpenFiles is the limit on descriptors (RLIMIT_NOFILE). The Go runtime may have raised the soft
// limit of this process.
type OpenFiles struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
	err  error
}

// NVIDIA describes NVIDIA's hardware and driver.
type NVIDIA struct {
	// Driver reports whether the CUDA driver library could be loaded and initialized.
	Driver Finding `json:"driver"`
	// DriverVersion is the version of the driver library, KernelModule the version of the kernel
	// module.
	DriverVersion string `json:"driver_version,omitempty"`
	KernelModule  string `json:"kernel_module,omitempty"`
	// OnBus lists the GPUs on the PCI bus, including those that the driver does not report.
	OnBus []PCILink `json:"on_bus"`
	GPUs  []GPU     `json:"gpus"`
	Peers []Peer    `json:"peers"`
}

// GPU is a GPU that the CUDA driver reports.
type GPU struct {
	Index       int     `json:"index"`
	Name        string  `json:"name"`
	UUID        string  `json:"uuid"`
	MemoryBytes int64   `json:"memory_bytes"`
	Compute     string  `json:"compute_capability"`
	Multiprocs  int     `json:"multiprocessors"`
	CopyEngines int     `json:"copy_engines"`
	NUMANode    int     `json:"numa_node"` // -1 if unknown
	PCI         PCILink `json:"pci"`
	// Usable reports whether the GPU could be opened.
	Usable Finding `json:"usable"`
	Probe  Probe   `json:"probe"`
	// Profile reports whether a profile with measurements of the GPU's copy paths is stored. The
	// planner uses it.
	Profile Finding `json:"profile"`
	// NIC reports which RDMA NIC would copy for the GPU and why it was chosen, or why no NIC can be
	// used.
	NIC Finding `json:"nic"`
	// DMABuf reports whether the GPU's memory can be exported to NICs as a dma-buf, and whether NIC
	// writes must be flushed.
	DMABuf Finding `json:"dma_buf"`
	// Sharing reports for each type of handle, best first, whether other processes can map the
	// GPU's memory. The last entry is for host memory pinned for the GPU.
	Sharing []Sharing `json:"sharing"`
}

// Sharing reports whether another process could import memory and access it.
type Sharing struct {
	Handle string  `json:"handle"` // "fabric", "posix-fd", "cuda-ipc", or "memfd" for host memory
	Works  Finding `json:"works"`
}

// PCILink describes the link of a device. Empty fields are unknown.
type PCILink struct {
	Address  string `json:"address"` // for example "0000:81:00.0"
	Speed    string `json:"speed,omitempty"`
	Width    int    `json:"width,omitempty"`
	MaxSpeed string `json:"max_speed,omitempty"`
	MaxWidth int    `json:"max_width,omitempty"`
	NUMANode int    `json:"numa_node"` // -1 if unknown
}

// Peer reports whether one GPU can access another GPU's memory directly.
type Peer struct {
	From   int     `json:"from"`
	To     int     `json:"to"`
	Access Finding `json:"access"`
	Link   string  `json:"link,omitempty"` // interconnect, if known
}

// Probe reports which copy paths work on a device.
type Probe struct {
	CopyEngine Finding `json:"copy_engine"`
	Kernel     Finding `json:"kernel"`
	Staged     Finding `json:"staged"`
	// Batch reports whether copy engines support many copies in one call.
	Batch Finding `json:"batched_copies"`
	// Sums reports whether kernels compute the checksums of copied blocks.
	Sums Finding `json:"sums"`
}

// CUDA is the result of Machine.CUDA.
type CUDA struct {
	Version string
	Devices []CUDADevice
	Peers   []Peer
}

// CUDADevice is a device of the driver. If the device could not be opened, Err is set and Info may
// have only the index.
type CUDADevice struct {
	Info    device.Info
	Err     error
	Probe   Probe
	Profile Finding
	NIC     Finding
	DMABuf  Finding
	Sharing []Sharing
}

// RDMA describes the RDMA library and devices.
type RDMA struct {
	Library Finding      `json:"libibverbs"`
	Devices []RDMADevice `json:"devices"`
	// PeerMemory reports whether a kernel module that gives NICs access to GPU memory without a
	// dma-buf is loaded.
	PeerMemory Finding `json:"nvidia_peermem"`
}

// RDMADevice is one RDMA device.
type RDMADevice struct {
	Name     string     `json:"name"`
	Firmware string     `json:"firmware,omitempty"`
	NUMANode int        `json:"numa_node"` // -1 if unknown
	Ports    []RDMAPort `json:"ports"`
}

// RDMAPort is one port of an RDMA device.
type RDMAPort struct {
	Number    int    `json:"number"`
	State     string `json:"state"`      // "ACTIVE", "DOWN", ...
	LinkLayer string `json:"link_layer"` // "InfiniBand" or "Ethernet"
	Rate      string `json:"rate,omitempty"`
	GIDs      []GID  `json:"gids"`
}

// GID is an address of a port. Unused table entries are omitted.
type GID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type,omitempty"` // "IB/RoCE v1", "RoCE v2"
}

// CuFile describes GPUDirect Storage.
type CuFile struct {
	Library Finding `json:"libcufile"`
	// Driver reports whether the library's driver could be opened on a GPU.
	Driver Finding `json:"driver"`
	// Direct reports whether file data is transferred to GPU memory without host memory.
	Direct Finding `json:"direct"`
	// LogFile is the path of the library's log. Log lists the failures logged during the probe,
	// oldest first.
	LogFile string   `json:"log_file,omitempty"`
	Log     []string `json:"log,omitempty"`
}

// HugePages is the kernel's pool of huge pages of one size.
type HugePages struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
}

// LockedMemory is the limit on memory that this process may lock.
type LockedMemory struct {
	SoftBytes uint64 `json:"soft_bytes"` // math.MaxUint64: no limit
	HardBytes uint64 `json:"hard_bytes"`
	// Exempt reports whether the process has CAP_IPC_LOCK, so that the limit does not apply.
	Exempt Answer  `json:"exempt"`
	Enough Finding `json:"enough"`
}

// FileSystem is the file system of a directory.
type FileSystem struct {
	Dir        string  `json:"dir"`
	Source     string  `json:"source,omitempty"`
	Type       string  `json:"type"`
	TotalBytes int64   `json:"total_bytes"`
	FreeBytes  int64   `json:"free_bytes"` // free space for this user
	Usable     Finding `json:"usable"`
	DirectIO   Finding `json:"direct_io"`
	// CuFile reports whether and how cuFile transferred data between a GPU and a file in Dir.
	// Absent if this was not tried.
	CuFile Finding `json:"cufile,omitzero"`
}

// Path reports whether a copy path or a required ability is available.
type Path struct {
	Name      string  `json:"name"`
	What      string  `json:"what"`
	Available Finding `json:"available"`
}
