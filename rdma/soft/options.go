package soft

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
)

// Names of the operations in Options.Faults. A verb with a fault fails, regardless of the action.
// The operations for the execution of requests are counted when a request starts. They support
// every action; Crash has the effect of Fail.
const (
	OpOpen          = "open-device"
	OpQueryPort     = "query-port"
	OpQueryGID      = "query-gid"
	OpAllocPD       = "alloc-pd"
	OpCreateChannel = "create-comp-channel"
	OpCreateCQ      = "create-cq"
	OpRegMR         = "reg-mr" // also RegDMABufMR
	OpCreateQP      = "create-qp"
	OpCreateSRQ     = "create-srq"
	OpQueryQP       = "query-qp"
	OpModifyQP      = "modify-qp"
	OpPostSend      = "post-send"
	OpPostRecv      = "post-recv" // of a queue pair or a shared receive queue
	OpPoll          = "poll-cq"   // a failure makes the queue unusable
	OpNotify        = "req-notify-cq"
	OpWaitChannel   = "get-cq-event"
	OpWaitEvent     = "get-async-event"
	OpClose         = "close" // any object; a failure leaves it open

	OpWrite = "write" // execution of an RDMA write, with or without immediate data
	OpRead  = "read"  // execution of an RDMA read
	OpSend  = "send"  // execution of a send
)

// Options are the options of a provider. The zero value has one device, "soft0", and copies memory
// with a CPU address.
type Options struct {
	// Devices are the options of each device. Default: one device with default options.
	Devices []DeviceOptions
	// Mover moves the bytes of all devices. Default: CPUMover.
	Mover Mover
	// Schedule makes the order of steps random. Nil: each step happens as soon as possible.
	Schedule *Schedule
	// Faults is the fault plan. Optional. The Mover must be able to read host memory.
	Faults *fault.Plan
	// DrainTimeout is the maximum time that Close, or a reset of a queue pair, waits for transfers
	// of the Mover. After it they return ErrBusy. Default: 10 s.
	DrainTimeout time.Duration
}

// Schedule makes a provider take one step at a time, which starts one request or completes one.
// Seed determines the choice among the possible steps. This produces orders that are possible with
// hardware: requests of different queue pairs overtake each other, completions are late, and the
// bytes of a read arrive after later requests have started, unless these have SendFence.
type Schedule struct {
	Seed uint64
	// Manual means that only Provider.Step takes steps. Otherwise a goroutine takes them.
	Manual bool
}

// DeviceOptions are the options of a device. A zero field has its default.
type DeviceOptions struct {
	Name  string        // default: "soft" and the index
	Ports []PortOptions // default: one with the default options
	// Limits replace the default limits; zero fields keep the default. See rdma.DeviceInfo.
	Limits rdma.DeviceInfo
	// NoDeviceMemory makes registration of device memory fail unless it is a dma-buf, as on a
	// machine without a peer memory module.
	NoDeviceMemory bool
	// NoDMABuf makes registration of dma-bufs fail, as with an old kernel.
	NoDMABuf bool
}

// PortOptions are the options of a port.
type PortOptions struct {
	Down            bool     // the port is inactive at first; see Device.SetPort
	MTU             rdma.MTU // default: 4096
	MaxMessageBytes uint32   // default: 1 GiB
	// GIDs is the GID table. Zero entries are empty. Default: a link-local and an IPv4 GID, unique
	// in the provider.
	GIDs    []rdma.GID
	GIDType rdma.GIDType // type of all GIDs; default RoCE v2
}

const (
	defaultDrainTimeout    = 10 * time.Second
	defaultMaxMessageBytes = 1 << 30
)

// Validate reports all errors of the options.
func (o *Options) Validate() error {
	var errs []error
	bad := func(what string, v any) {
		errs = append(errs, fmt.Errorf("option %s of the software NIC is %v: %w", what, v, errdefs.ErrInvalid))
	}
	if o.DrainTimeout < 0 {
		bad("DrainTimeout", o.DrainTimeout)
	}
	names, gids := make(map[string]bool), make(map[rdma.GID]bool)
	for i := range o.Devices {
		d := &o.Devices[i]
		if d.Name != "" && names[d.Name] {
			bad(fmt.Sprintf("Devices[%d].Name", i), d.Name+", a second time")
		}
		names[d.Name] = true
		for j := range d.Ports {
			p := &d.Ports[j]
			if p.MTU != 0 && p.MTU.Bytes() == 0 {
				bad(fmt.Sprintf("Devices[%d].Ports[%d].MTU", i, j), uint8(p.MTU))
			}
			if p.MaxMessageBytes > maxMessageBytes {
				bad(fmt.Sprintf("Devices[%d].Ports[%d].MaxMessageBytes", i, j), p.MaxMessageBytes)
			}
			for _, g := range p.GIDs {
				if g != (rdma.GID{}) && gids[g] {
					bad(fmt.Sprintf("Devices[%d].Ports[%d].GIDs", i, j), g.String()+", a second time")
				}
				gids[g] = true
			}
		}
	}
	return errors.Join(errs...)
}

// maxMessageBytes is the maximum length of a message by the InfiniBand specification.
const maxMessageBytes = 1 << 31

func (o *Options) setDefaults() {
	setDefault(&o.DrainTimeout, defaultDrainTimeout)
	if o.Mover == nil {
		o.Mover = CPUMover{}
	}
	if len(o.Devices) == 0 {
		o.Devices = make([]DeviceOptions, 1)
	}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// limits returns the properties of device i.
func (o *DeviceOptions) limits(i int) rdma.DeviceInfo {
	l := o.Limits
	l.Provider, l.Name = providerName, o.Name
	if l.Name == "" {
		l.Name = fmt.Sprintf("soft%d", i)
	}
	setDefault(&l.GUID, 0x6b766c_0000_000000|uint64(i+1))
	setDefault(&l.Firmware, "1")
	setDefault(&l.MaxMRBytes, 1<<47)
	setDefault(&l.MaxMR, 1<<16)
	setDefault(&l.MaxPD, 1<<10)
	setDefault(&l.MaxQP, 1<<12)
	setDefault(&l.MaxQPWR, 1<<15)
	setDefault(&l.MaxSGE, 30)
	setDefault(&l.MaxSGERead, 30)
	setDefault(&l.MaxCQ, 1<<12)
	setDefault(&l.MaxCQE, 1<<20)
	setDefault(&l.MaxSRQ, 1<<10)
	setDefault(&l.MaxSRQWR, 1<<15)
	setDefault(&l.MaxSRQSGE, 30)
	setDefault(&l.MaxQPRDAtomic, 16)
	setDefault(&l.MaxQPInitRDAtomic, 16)
	l.Ports = max(len(o.Ports), 1)
	return l
}
