package rdma

import "context"

// Provider finds the RDMA devices of this machine.
type Provider interface {
	// Name returns the name of the implementation: "ibv" or "soft".
	Name() string
	// Devices returns the names of the devices in the order of the system's list. An index of a
	// device refers to this list. If there is no device, Devices returns ErrNotSupported with the
	// reason. Each call reads the list from the system.
	Devices() ([]string, error)
	// Open opens the device with the given name. An ErrNotFound error lists the existing names. A
	// device may be opened several times.
	Open(name string) (Device, error)
	// Close closes the provider. It returns ErrBusy while a device is open.
	Close() error
}

// RetryCounter is implemented by a Provider that retries failed connection attempts.
type RetryCounter interface {
	// ConnectRetries returns the number of retries because the peer's link address was not resolved
	// in time, when moving queue pairs of the device to QPSRTR. It counts all users of the device
	// since the provider was loaded. It is safe for concurrent use, also after Close.
	ConnectRetries(device string) int64
}

// Device is an open RDMA device: a verbs context.
type Device interface {
	// Info returns the properties that the device had when it was opened. It never waits.
	Info() DeviceInfo
	// QueryPort returns the current state of a port, counted from 1. It returns ErrInvalid if there
	// is no such port.
	QueryPort(port int) (PortInfo, error)
	// QueryGID returns a current entry of the port's GID table. It returns ErrNotFound for an empty
	// entry, and ErrInvalid if the table is shorter or the port does not exist.
	QueryGID(port, index int) (GIDEntry, error)
	// AllocPD creates a protection domain.
	AllocPD() (PD, error)
	// CreateCompChannel creates a completion channel.
	CreateCompChannel() (CompChannel, error)
	// CreateCQ creates a completion queue. It returns ErrInvalid for a size that the device does
	// not support.
	CreateCQ(o CQOptions) (CQ, error)
	// WaitEvent waits for the next asynchronous event of the device. Every event is returned once,
	// to one caller. If ctx ends, WaitEvent returns its cause. After Close it returns ErrClosed.
	WaitEvent(ctx context.Context) (AsyncEvent, error)
	// Close closes the device. It returns ErrBusy while an object created from it is open.
	Close() error
}

// DeviceInfo describes a device. The limits are upper bounds: the device may refuse smaller values.
type DeviceInfo struct {
	Provider string // Provider.Name
	Name     string // "mlx5_0", "rxe0", "soft0"
	GUID     uint64 // GUID of the node, in host byte order
	Firmware string
	VendorID uint32
	PartID   uint32 // vendor_part_id
	Ports    int    // physical ports, numbered from 1

	MaxMRBytes        uint64 // maximum length of a memory region in bytes
	MaxMR             int
	MaxPD             int
	MaxQP             int
	MaxQPWR           int // capacity of a send or receive queue in work requests
	MaxSGE            int // scatter-gather entries of a request other than an RDMA read
	MaxSGERead        int // scatter-gather entries of an RDMA read
	MaxCQ             int
	MaxCQE            int
	MaxSRQ            int
	MaxSRQWR          int
	MaxSRQSGE         int
	MaxQPRDAtomic     int // RDMA reads that a queue pair serves concurrently
	MaxQPInitRDAtomic int // RDMA reads that a queue pair issues concurrently
}

// PortInfo describes a port.
type PortInfo struct {
	Number          int
	State           PortState
	LinkLayer       LinkLayer
	MaxMTU          MTU
	ActiveMTU       MTU
	MaxMessageBytes uint32 // max_msg_sz: maximum length of a message
	GIDs            int    // length of the GID table, including empty entries
	PKeys           int    // length of the partition key table
	LID             uint16 // local identifier; zero on Ethernet
	// RateGbps is the link rate in gigabits per second, from width and speed. Zero: unknown.
	RateGbps float64
}

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	Index int
	GID   GID
	Type  GIDType
}

// AsyncEvent is an asynchronous event of a device. Completions do not report it.
type AsyncEvent struct {
	Type  EventType
	CQ    CQ     // for EventCQErr; else nil
	QPNum uint32 // number of the queue pair, for its events
	Port  int    // number of the port, for its events
}
