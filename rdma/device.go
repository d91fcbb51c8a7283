package rdma

import "context"

// Provider finds the RDMA devices of this machine.
type Provider interface {
	// Name says which implementation this is: "ibv" or "soft".
	Name() string
	// Devices returns the names of the devices, in the order of the system's list; the index in it is what users count
	// devices by. Where there is none it is ErrNotSupported with the reason. The list is read anew by every call.
	Devices() ([]string, error)
	// Open opens the device of that name. ErrNotFound names those that exist. A device may be open several times.
	Open(name string) (Device, error)
	// Close gives back what the provider holds. ErrBusy while a device is open.
	Close() error
}

// RetryCounter is what a Provider is that tries again by itself to connect queue pairs.
type RetryCounter interface {
	// ConnectRetries returns how often a queue pair of the device of that name was moved to QPSRTR once more, as the peer's link address had not
	// been found in time: over all that have opened the device, from Load on. Safe for concurrent use, also after Close.
	ConnectRetries(device string) int64
}

// Device is one open RDMA device: a verbs context.
type Device interface {
	// Info describes the device. It was read when the device was opened and does not change. Never waits.
	Info() DeviceInfo
	// QueryPort describes port, counted from 1, as it is now. ErrInvalid for a port that the device does not have.
	QueryPort(port int) (PortInfo, error)
	// QueryGID returns entry index of the port's table, as it is now. ErrNotFound where the entry is empty, ErrInvalid
	// where the table is shorter or the port does not exist.
	QueryGID(port, index int) (GIDEntry, error)
	// AllocPD makes a protection domain.
	AllocPD() (PD, error)
	// CreateCompChannel makes a completion channel.
	CreateCompChannel() (CompChannel, error)
	// CreateCQ makes a completion queue. ErrInvalid for a size that the device does not have.
	CreateCQ(o CQOptions) (CQ, error)
	// WaitEvent waits for the next asynchronous event of the device until ctx ends, and then returns its cause. Every
	// event is returned once, to one caller. ErrClosed once the device is closed, also to those who wait.
	WaitEvent(ctx context.Context) (AsyncEvent, error)
	// Close closes the device. ErrBusy while any object made of it is open.
	Close() error
}

// DeviceInfo describes a device. Limits are the largest values that the device may accept, and promise nothing.
type DeviceInfo struct {
	Provider string // Provider.Name
	Name     string // "mlx5_0", "rxe0", "soft0"
	GUID     uint64 // of the node, in host byte order
	Firmware string // as it says itself
	VendorID uint32
	PartID   uint32 // vendor_part_id
	Ports    int    // physical ports, numbered from 1

	MaxMRBytes        uint64 // longest memory region
	MaxMR             int
	MaxPD             int
	MaxQP             int
	MaxQPWR           int // work requests of one send or receive queue
	MaxSGE            int // scatter-gather entries of a request, but for reads
	MaxSGERead        int // scatter-gather entries of an RDMA read
	MaxCQ             int
	MaxCQE            int
	MaxSRQ            int
	MaxSRQWR          int
	MaxSRQSGE         int
	MaxQPRDAtomic     int // RDMA reads that a queue pair answers at once
	MaxQPInitRDAtomic int // RDMA reads that a queue pair has outstanding at once
}

// PortInfo describes a port.
type PortInfo struct {
	Number          int
	State           PortState
	LinkLayer       LinkLayer
	MaxMTU          MTU
	ActiveMTU       MTU
	MaxMessageBytes uint32  // max_msg_sz: longest message of one work request
	GIDs            int     // length of the GID table, empty entries included
	PKeys           int     // length of the partition key table
	LID             uint16  // local identifier; zero on Ethernet
	RateGbps        float64 // gigabits a second of the link, from its width and speed; zero where unknown
}

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	Index int
	GID   GID
	Type  GIDType
}

// AsyncEvent is something that happened to a device and that no completion tells.
type AsyncEvent struct {
	Type  EventType
	CQ    CQ     // of EventCQErr; nil otherwise
	QPNum uint32 // of the events of queue pairs
	Port  int    // of the events of ports
}
