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
	Unknown Answer = "unknown" // the question could not be put: no permission, an unexpected failure
)

// Finding is an answer with its reason.
type Finding struct {
	Answer Answer `json:"answer"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"` // what would make it a yes, where something would
	// Brief is the reason in fewer words, for people; empty where Reason is as brief as it gets.
	Brief string `json:"-"`
}

// Answered turns the outcome of a probe into a Finding: nil is a yes, ErrNotSupported a no, and any other error leaves the
// question open. The remedy counts only for what is not a yes.
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

// of returns f with its reason said of a part of the machine.
func (f Finding) of(part string) Finding {
	f.Reason = part + ": " + f.Reason
	if f.Brief != "" {
		f.Brief = part + ": " + f.Brief
	}
	return f
}

// Report is what Examine found.
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
	// Required answers for each of Options.Require, in that order.
	Required []Path `json:"required,omitempty"`
}

// Host is the machine without its devices.
type Host struct {
	Kernel         string `json:"kernel"`
	CPUs           int    `json:"cpus"`       // that this process may use
	NUMANodes      int    `json:"numa_nodes"` // zero where unknown
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

// NVIDIA is what there is of NVIDIA's hardware and driver.
type NVIDIA struct {
	// Driver says whether CUDA's driver library could be loaded and initialized.
	Driver Finding `json:"driver"`
	// DriverVersion is what the driver library says of itself, KernelModule the version of the kernel's part.
	DriverVersion string `json:"driver_version,omitempty"`
	KernelModule  string `json:"kernel_module,omitempty"`
	// OnBus lists the GPUs on the PCI bus, whether or not the driver has them.
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
	NUMANode    int     `json:"numa_node"` // -1 where unknown
	PCI         PCILink `json:"pci"`
	// Usable says whether the GPU could be opened.
	Usable Finding `json:"usable"`
	Probe  Probe   `json:"probe"`
	// Profile says whether what the GPU's paths take was measured and stored, for the planner.
	Profile Finding `json:"profile"`
	// NIC says which RDMA NIC carries the GPU's copies where one is asked for, and why that one, or why none can.
	NIC Finding `json:"nic"`
	// DMABuf says whether the GPU's memory can be given to NICs as a dma-buf, and whether their writes have to be flushed.
	DMABuf Finding `json:"dma_buf"`
	// Sharing says by which types of handle other processes can map the GPU's memory, the best first, and host memory pinned for it.
	Sharing []Sharing `json:"sharing"`
}

// Sharing says whether memory was exported, imported by another process, and read and written there.
type Sharing struct {
	Handle string  `json:"handle"` // "fabric", "posix-fd", "cuda-ipc", or "memfd", which is host memory
	Works  Finding `json:"works"`
}

// PCILink is how a device is attached. Empty fields are unknown.
type PCILink struct {
	Address  string `json:"address"` // "0000:81:00.0"
	Speed    string `json:"speed,omitempty"`
	Width    int    `json:"width,omitempty"`
	MaxSpeed string `json:"max_speed,omitempty"`
	MaxWidth int    `json:"max_width,omitempty"`
	NUMANode int    `json:"numa_node"` // -1 where unknown
}

// Peer says whether one GPU reaches another's memory directly.
type Peer struct {
	From   int     `json:"from"`
	To     int     `json:"to"`
	Access Finding `json:"access"`
	Link   string  `json:"link,omitempty"` // what carries it, where known
}

// Probe says which ways of copying worked when tried on one device.
type Probe struct {
	CopyEngine Finding `json:"copy_engine"`
	Kernel     Finding `json:"kernel"`
	Staged     Finding `json:"staged"`
	// Batch says whether many copies go to a copy engine in one call.
	Batch Finding `json:"batched_copies"`
	// Sums says whether kernels make the checksums of blocks on the way.
	Sums Finding `json:"sums"`
}

// CUDA is what the CUDA driver answered, for Machine.
type CUDA struct {
	Version string
	Devices []CUDADevice
	Peers   []Peer
}

// CUDADevice is one device of the driver. Where Err is not nil the device could not be opened and Info holds its index
// at least.
type CUDADevice struct {
	Info    device.Info
	Err     error
	Probe   Probe
	Profile Finding
	NIC     Finding
	DMABuf  Finding
	Sharing []Sharing
}

// RDMA is what there is of RDMA.
type RDMA struct {
	Library Finding      `json:"libibverbs"`
	Devices []RDMADevice `json:"devices"`
	// PeerMemory says whether a kernel module lets NICs reach GPU memory the old way (without dma-buf).
	PeerMemory Finding `json:"nvidia_peermem"`
}

// RDMADevice is one RDMA device.
type RDMADevice struct {
	Name     string     `json:"name"`
	Firmware string     `json:"firmware,omitempty"`
	NUMANode int        `json:"numa_node"` // -1 where unknown
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

// CuFile is what there is of GPUDirect Storage.
type CuFile struct {
	Library Finding `json:"libcufile"`
	// Driver says whether the library's driver opened on a GPU.
	Driver Finding `json:"driver"`
	// Direct says whether file bytes can go to GPU memory without passing through host memory.
	Direct Finding `json:"direct"`
	// LogFile is where the library writes its log, and Log what it wrote there of failures just now, the oldest first.
	LogFile string   `json:"log_file,omitempty"`
	Log     []string `json:"log,omitempty"`
}

// HugePages is the kernel's pool of one size of huge pages.
type HugePages struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
}

// LockedMemory is how much memory this process may lock.
type LockedMemory struct {
	SoftBytes uint64 `json:"soft_bytes"` // math.MaxUint64: no limit
	HardBytes uint64 `json:"hard_bytes"`
	// Exempt says whether the process has CAP_IPC_LOCK, so that the limit does not bind it.
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
	// CuFile says whether cuFile moved bytes between a GPU and a file here, and by which way. Absent where it was not tried.
	CuFile Finding `json:"cufile,omitzero"`
}

// Path says whether one of kvlane's ways to move bytes, or something that was required, is available here.
type Path struct {
	Name      string  `json:"name"`
	What      string  `json:"what"`
	Available Finding `json:"available"`
}
