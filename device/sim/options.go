package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

// Names of the operations that Options.Faults counts. Those of queues come in two kinds: the call, whose fault is the
// call's error, and the work, which is counted when it runs and whose fault is the queue's sticky error. Work obeys
// every action, and Crash as Fail; a call fails whatever the action.
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
	OpBatch  = "batch"  // of a CopyBatch, all of it together
	OpFill   = "fill"   // of a Fill
	OpLaunch = "launch" // of a Launch, the whole kernel
	OpWork   = "work"   // any of the five that moves bytes, counted together, where no rule for the one has hit it
)

// What memory holds when it should not be read.
const (
	PoisonFresh = 0xcb // device memory never written since it was allocated
	PoisonFreed = 0xdb // pinned memory after Free
)

// Interleave makes a device run one operation at a time, from a queue drawn from Seed among those that can go on. The
// latency and bandwidth model and delays do not apply then.
type Interleave struct {
	Seed uint64
	// Manual devices do nothing until Device.Step or StepAll is called; whoever waits without another goroutine that
	// steps waits for ever. The rest step on a goroutine of their own, as soon as there is work.
	Manual bool
}

// Options describe a simulated device. The zero value is a device with the default memory and no limits, that works as
// fast as it can.
type Options struct {
	// Index of the device. Default 0.
	Index int
	// Name is the product name. Default "simulated GPU".
	Name string
	// MemoryBytes is how much device memory there is; it is backed by host memory as it is allocated. Default 16 GiB.
	MemoryBytes int64
	// HostRegisterLimitBytes bounds page-locked host memory in all, by AllocHost and RegisterHost together; zero: no limit.
	HostRegisterLimitBytes int64
	// HostRegisterMaxBytes bounds one registration or pinned allocation; zero: no limit.
	HostRegisterMaxBytes int64
	// BandwidthGBps is the rate of the link to the host, per direction, that all queues share, in 1e9 bytes a second.
	// Copies inside device memory are not held back. Zero: as fast as it goes.
	BandwidthGBps float64
	// LatencyPerOp is what a copy, a batch, a fill or a kernel takes before its first byte moves, and occupies the link.
	LatencyPerOp time.Duration
	// Clock paces the model. Default: the real clock.
	Clock clockwork.Clock
	// Still has copies and kvlane's copying kernels complete without moving a byte, as if all memory held zeros: sums are those of
	// zeros, which is what pinned memory that nobody writes has. What the host does beside a device that does its work
	// by itself can then be measured. Files are read and written all the same. Damage and the traffic model do not apply to what is not moved.
	Still bool
	// Storage is how the device reaches files.
	Storage StorageModel
	// Faults says which operations go wrong; nil: none.
	Faults *fault.Plan
	// Interleave runs operations one at a time in a seeded order; nil: queues run concurrently.
	Interleave *Interleave
	// QuarantineBytes is how much freed pinned memory is kept mapped, so that late reads find PoisonFreed and late
	// writes are found. Default 64 MiB; negative: none, and late accesses crash the process.
	QuarantineBytes int64
	// WaitsHoldAllocation has whoever allocates, registers or frees memory, or opens a queue, wait as long as a stream of the
	// host program has been told to wait for a word and that is not over: what drivers may do. Kernels are always loaded.
	WaitsHoldAllocation bool
	// HostAddresses puts device memory at the CPU addresses of what backs it, so that an RDMA NIC of this host can be given
	// it, as NICs are given a GPU's memory by peer memory modules. Addresses are then used again.
	HostAddresses bool
	// DMABufs has memory exported as dma-bufs, which are files of their length in place of it: for NICs in software.
	DMABufs bool
	// RemoteWritesNeedFlush has NeedsFlush say so. Nothing is late for all that.
	RemoteWritesNeedFlush bool
}

// Validate reports everything that is wrong with the options.
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
	if !(o.BandwidthGBps >= 0) { // NaN too
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
