package soft

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
)

// Names of the operations that Options.Faults counts. A verb that is hit fails, whatever the action. The work of requests
// is counted when a request starts, and obeys every action; Crash counts as Fail.
const (
	OpOpen          = "open-device"
	OpQueryPort     = "query-port"
	OpQueryGID      = "query-gid"
	OpAllocPD       = "alloc-pd"
	OpCreateChannel = "create-comp-channel"
	OpCreateCQ      = "create-cq"
	OpRegMR         = "reg-mr" // RegDMABufMR too
	OpCreateQP      = "create-qp"
	OpCreateSRQ     = "create-srq"
	OpQueryQP       = "query-qp"
	OpModifyQP      = "modify-qp"
	OpPostSend      = "post-send"
	OpPostRecv      = "post-recv" // of a queue pair or a shared receive queue
	OpPoll          = "poll-cq"   // a failure loses the queue
	OpNotify        = "req-notify-cq"
	OpWaitChannel   = "get-cq-event"
	OpWaitEvent     = "get-async-event"
	OpClose         = "close" // of any object; a failure leaves it open

	OpWrite = "write" // the work of an RDMA write, with immediate data or without
	OpRead  = "read"  // of an RDMA read
	OpSend  = "send"  // of a send
)

// Options describe a provider. The zero value has one device, "soft0", and copies between what the CPU reaches.
type Options struct {
	// Devices are the provider's devices. Default: one with the default options.
	Devices []DeviceOptions
	// Mover moves the bytes, of all devices. Default: CPUMover.
	Mover Mover
	// Schedule draws the order of what may happen in any order from a seed; nil: it happens as soon as it can.
	Schedule *Schedule
	// Faults says which operations go wrong; nil: none. Its Mover has to reach plain host memory.
	Faults *fault.Plan
	// DrainTimeout is how long a Close, or a reset of a queue pair, waits for bytes that the Mover is moving, before it
	// gives up with ErrBusy. Default: 10 s.
	DrainTimeout time.Duration
}

// Schedule makes a provider take one step at a time: start one request, or let one that has landed complete. Which of
// those that are possible is drawn from Seed. Requests of different queue pairs then overtake one another, completions come
// late, and the bytes of a read land after requests behind it have started, unless those have SendFence: all as it may be
// with hardware.
type Schedule struct {
	Seed uint64
	// Manual providers take steps only in Provider.Step. The rest do on a goroutine of their own.
	Manual bool
}

// DeviceOptions describe a device. The zero value of every field asks for its default.
type DeviceOptions struct {
	Name  string        // default: "soft" and the index
	Ports []PortOptions // default: one with the default options
	// Limits of the device, where they are not zero, take the place of the defaults: see rdma.DeviceInfo.
	Limits rdma.DeviceInfo
	// NoDeviceMemory refuses device memory that is not a dma-buf, as a machine without a peer memory module does.
	NoDeviceMemory bool
	// NoDMABuf refuses dma-bufs, as an old kernel does.
	NoDMABuf bool
}

// PortOptions describe a port.
type PortOptions struct {
	Down            bool         // the port is not active; Device.SetPort changes that
	MTU             rdma.MTU     // default: 4096
	MaxMessageBytes uint32       // default: 1 GiB
	GIDs            []rdma.GID   // default: a link-local one and an IPv4 one, unique in the provider; zero entries are empty
	GIDType         rdma.GIDType // of all entries; default RoCE v2
}

const (
	defaultDrainTimeout    = 10 * time.Second
	defaultMaxMessageBytes = 1 << 30
)

// Validate reports everything that is wrong with the options.
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

// maxMessageBytes is the longest message that the InfiniBand specification has.
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

// limits returns what device number i says of itself.
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
