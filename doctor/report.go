package doctor

import (
	"errors"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Answer is one of Yes, No and Unknown.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown" // inconclusive: no permission, or an unexpected failure
)

// Finding is an answer with its reason.
type Finding struct {
	Answer Answer `json:"answer"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"` // change that would make it a yes, if known
	// Brief is a shorter reason, for the text form. Empty: Reason is short.
	Brief string `json:"-"`
}

// Answered converts the outcome of a probe to a Finding: nil is a yes, ErrNotSupported a no, any
// other error an unknown. A yes has no remedy.
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

// of returns f with the name of a part of the machine before its reason.
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
	// Required has the answers to Options.Require, in that order.
	Required []Path `json:"required,omitempty"`
}

// Host describes the machine without its devices.
type Host struct {
	Kernel         string `json:"kernel"`
	CPUs           int    `json:"cpus"`       // available to this process
	NUMANodes      int    `json:"numa_nodes"` // 0 if unknown
	MemoryBytes    int64  `json:"memory_bytes"`
	AvailableBytes int64  `json:"available_bytes"`
	// MemoryLimit is the limit in bytes, and PIDLimit the limit on processes and threads, that
	// leaves least among those of the process's cgroup and of the cgroups above it.
	MemoryLimit CgroupLimit `json:"cgroup_memory"`
	PIDLimit    CgroupLimit `json:"cgroup_pids"`
	OpenFiles   OpenFiles   `json:"open_files"`
}

// CgroupLimit is a hard limit that a cgroup sets. Without one, File is empty.
type CgroupLimit struct {
	File string `json:"file,omitempty"`
	Max  int64  `json:"max"`
	Used int64  `json:"used"`
}

// OpenFiles is the limit on descriptors (RLIMIT_NOFILE). Go's runtime has raised the soft limit of
// this process.
type OpenFiles struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
	err  error
}

// NVIDIA describes NVIDIA's hardware and driver.
type NVIDIA struct {
	// Driver reports whether CUDA's driver library was loaded and initialized.
	Driver Finding `json:"driver"`
	// DriverVersion is the version of the driver library, KernelModule that of the kernel module.
	DriverVersion string `json:"driver_version,omitempty"`
	KernelModule  string `json:"kernel_module,omitempty"`
	// OnBus lists the GPUs on the PCI bus, whether or not the driver offers them.
	OnBus []PCILink `json:"on_bus"`
	GPUs  []GPU     `json:"gpus"`
	Peers []Peer    `json:"peers"`
}

// GPU is a GPU that CUDA's driver offers.
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
	// Profile reports whether there is a stored profile, with measurements of the GPU's paths for
	// the planner.
	Profile Finding `json:"profile"`
	// NIC reports which RDMA NIC copies for the GPU if copies by NICs are on, and the reason for
	// the choice, or why none can.
	NIC Finding `json:"nic"`
	// DMABuf reports whether the GPU's memory can be exported to NICs as a dma-buf, and whether
	// writes of NICs must be flushed.
	DMABuf Finding `json:"dma_buf"`
	// Sharing reports by type of handle, the best first, whether other processes can map the GPU's
	// memory, and at last host memory pinned for it.
	Sharing []Sharing `json:"sharing"`
}

// Sharing reports whether memory was exported, imported by another process, and read and written
// there.
type Sharing struct {
	Handle string  `json:"handle"` // "fabric", "posix-fd", "cuda-ipc", or "memfd" for host memory
	Works  Finding `json:"works"`
}

// PCILink describes the link of a device. Empty fields are unknown.
type PCILink struct {
	Address  string `json:"address"` // "0000:81:00.0"
	Speed    string `json:"speed,omitempty"`
	Width    int    `json:"width,omitempty"`
	MaxSpeed string `json:"max_speed,omitempty"`
	MaxWidth int    `json:"max_width,omitempty"`
	NUMANode int    `json:"numa_node"` // -1 if unknown
}

// Peer reports whether one GPU can access another's memory directly.
type Peer struct {
	From   int     `json:"from"`
	To     int     `json:"to"`
	Access Finding `json:"access"`
	Link   string  `json:"link,omitempty"` // interconnect, if known
}

// Probe reports which ways of copying have worked on one device.
type Probe struct {
	CopyEngine Finding `json:"copy_engine"`
	Kernel     Finding `json:"kernel"`
	Staged     Finding `json:"staged"`
	// Batch reports whether copy engines take many copies in one call.
	Batch Finding `json:"batched_copies"`
	// Sums reports whether kernels compute the checksums of the blocks that they copy.
	Sums Finding `json:"sums"`
}

// CUDA is the result of Machine.CUDA.
type CUDA struct {
	Version string
	Devices []CUDADevice
	Peers   []Peer
}

// CUDADevice is one device of the driver. If Err is not nil, the device could not be opened, and
// Info has at least its index.
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
	// PeerMemory reports whether a kernel module lets NICs access GPU memory without a dma-buf.
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

// GID is an address of a port. Unused entries of the port's table are left out.
type GID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type,omitempty"` // "IB/RoCE v1", "RoCE v2"
}

// CuFile describes GPUDirect Storage.
type CuFile struct {
	Library Finding `json:"libcufile"`
	// Driver reports whether the library's driver opened on a GPU.
	Driver Finding `json:"driver"`
	// Direct reports whether bytes of files reach GPU memory without passing through host memory.
	Direct Finding `json:"direct"`
	// LogFile is the path of the library's log. Log has the failures that it recorded during the
	// probe, the oldest first.
	LogFile string   `json:"log_file,omitempty"`
	Log     []string `json:"log,omitempty"`
}

// HugePages is the kernel's pool of one size of huge pages.
type HugePages struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
}

// LockedMemory is the amount of memory that this process may lock.
type LockedMemory struct {
	SoftBytes uint64 `json:"soft_bytes"` // math.MaxUint64: no limit
	HardBytes uint64 `json:"hard_bytes"`
	// Exempt reports whether the process has CAP_IPC_LOCK. The limit does not apply to it then.
	Exempt Answer  `json:"exempt"`
	Enough Finding `json:"enough"`
}

// FileSystem is the file system that holds a directory.
type FileSystem struct {
	Dir        string  `json:"dir"`
	Source     string  `json:"source,omitempty"`
	Type       string  `json:"type"`
	TotalBytes int64   `json:"total_bytes"`
	FreeBytes  int64   `json:"free_bytes"` // for this user
	Usable     Finding `json:"usable"`
	DirectIO   Finding `json:"direct_io"`
	// CuFile reports whether cuFile moved bytes between a GPU and a file in Dir, and how. It is
	// absent if that was not tried.
	CuFile Finding `json:"cufile,omitzero"`
}

// Path reports whether one of kvlane's ways of moving bytes, or a requirement, is available.
type Path struct {
	Name      string  `json:"name"`
	What      string  `json:"what"`
	Available Finding `json:"available"`
}
