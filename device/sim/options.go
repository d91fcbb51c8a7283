package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

// The names of the operations that Options.Faults counts. Operations of queues have two names: one
// for the call and one for the work. A fault of the call is returned by the call. Work is counted
// when it runs, and its fault is the queue's sticky error. Work supports all actions, but treats
// Crash as Fail; a call fails for any action.
const (
	OpAlloc     = "alloc"      // Device.Alloc
	OpAllocHost = "alloc-host" // Device.AllocHost
	OpRegister  = "register"   // Device.RegisterHost
	OpFree      = "free"       // Device.Free
	OpOpen      = "open-queue" // Device.OpenQueue

	OpCallCopy   = "call-copy"   // Queue.Copy
	OpCallBatch  = "call-batch"  // Queue.CopyBatch
	OpCallFill   = "call-fill"   // Queue.Fill
	OpCallLaunch = "call-launch" // Queue.Launch
	OpRecord     = "record"      // Queue.Record and HostStream.Record
	OpWait       = "wait"        // Queue.Wait and HostStream.WaitValue
	OpStore      = "store"       // HostStream.WriteValue

	OpCopy   = "copy"   // the work of a Copy
	OpBatch  = "batch"  // the work of a CopyBatch as a whole
	OpFill   = "fill"   // the work of a Fill
	OpLaunch = "launch" // the work of a Launch, the whole kernel
	// OpWork counts all work that moves bytes. Its rules apply if no rule for the work's own name
	// does.
	OpWork = "work"
)

// Values that fill memory that should not be read.
const (
	PoisonFresh = 0xcb // device memory not written since its allocation
	PoisonFreed = 0xdb // pinned memory after Free
)

// Interleave makes a device run one operation at a time. Seed determines the queue of each among
// those that can continue. Delays and the model of latency and bandwidth then do not apply.
type Interleave struct {
	Seed uint64
	// Manual devices run operations only in Device.Step and StepAll. While one goroutine waits,
	// another must call them. Other devices step in a separate goroutine as soon as there is work.
	Manual bool
}

// Options describe a simulated device. The zero value is a device with the default memory, no
// limits and no delays.
type Options struct {
	// Index of the device. Default 0.
	Index int
	// Name is the product name. Default "simulated GPU".
	Name string
	// MemoryBytes is the size of device memory. Host memory backs it as it is allocated. Default 16
	// GiB.
	MemoryBytes int64
	// HostRegisterLimitBytes limits the total page-locked host memory of AllocHost and
	// RegisterHost. Zero means no limit.
	HostRegisterLimitBytes int64
	// HostRegisterMaxBytes limits each registration and pinned allocation. Zero means no limit.
	HostRegisterMaxBytes int64
	// BandwidthGBps is the rate of the link to the host per direction, in 1e9 bytes per second. All
	// queues share it. It does not apply to copies within device memory. Zero means no limit.
	BandwidthGBps float64
	// LatencyPerOp is the time from the start of a copy, batch, fill or kernel to its first byte.
	// It occupies the link.
	LatencyPerOp time.Duration
	// Clock paces the model. Default: the system clock.
	Clock clockwork.Clock
	// Still makes copies and kvlane's copy kernels complete without moving a byte, as if all memory
	// contained zeros. Sums are those of zeros, which match pinned memory that is never written.
	// Use it to measure the host's work next to a device that needs no CPU time. File reads and
	// writes still happen. Faults that damage bytes and the traffic model ignore bytes that are not
	// moved.
	Still bool
	// Storage describes the device's access to files.
	Storage StorageModel
	// Faults selects the operations that fail; nil means none.
	Faults *fault.Plan
	// Interleave runs operations one at a time in a seeded order. If it is nil, queues run
	// concurrently.
	Interleave *Interleave
	// QuarantineBytes is the amount of freed pinned memory that stays mapped, so that late reads
	// return PoisonFreed and late writes are detected. Default 64 MiB. A negative value disables
	// it; late accesses then crash the process.
	QuarantineBytes int64
	// WaitsHoldAllocation makes calls that allocate, register or free memory, or open a queue, wait
	// while a stream of the host program waits for a word, as drivers may do. Kernels are always
	// loaded.
	WaitsHoldAllocation bool
	// HostAddresses makes device memory use the CPU addresses of the memory that backs it. An RDMA
	// NIC of this host can then access it, as NICs access GPU memory through peer memory modules.
	// Addresses are then reused.
	HostAddresses bool
	// DMABufs enables the export of memory as dma-bufs. Files of the same length take their place,
	// for software NICs.
	DMABufs bool
	// RemoteWritesNeedFlush is the value that NeedsFlush returns. Remote writes are not delayed in
	// either case.
	RemoteWritesNeedFlush bool
}

// Validate returns every problem of the options.
func (o *Options) Validate() error {
	var errs []error
	bad := func(field string, v any) {
		errs = append(errs, fmt.Errorf("simulated device option %s is %v: %w", field, v, errdefs.ErrInvalid))
	}
	if o.Index < 0 {
		bad("Index", o.Index)
	}
	if o.MemoryBytes < 0 {
		bad("MemoryBytes", o.MemoryBytes)
	}
	if o.HostRegisterLimitBytes < 0 {
		bad("HostRegisterLimitBytes", o.HostRegisterLimitBytes)
	}
	if o.HostRegisterMaxBytes < 0 {
		bad("HostRegisterMaxBytes", o.HostRegisterMaxBytes)
	}
	if !(o.BandwidthGBps >= 0) { // also refuses NaN
		bad("BandwidthGBps", o.BandwidthGBps)
	}
	if o.LatencyPerOp < 0 {
		bad("LatencyPerOp", o.LatencyPerOp)
	}
	if o.Storage.MaxFiles < 0 {
		bad("Storage.MaxFiles", o.Storage.MaxFiles)
	}
	if o.Storage.MaxBufferBytes < 0 {
		bad("Storage.MaxBufferBytes", o.Storage.MaxBufferBytes)
	}
	return errors.Join(errs...)
}

func (o *Options) setDefaults() {
	if o.Name == "" {
		o.Name = "simulated GPU"
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 16 << 30
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.QuarantineBytes == 0 {
		o.QuarantineBytes = 64 << 20
	}
}
