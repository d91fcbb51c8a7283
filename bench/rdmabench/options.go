package rdmabench

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Op is what is measured.
type Op string

// The operations.
const (
	Write Op = "write"
	Read  Op = "read"
	Send  Op = "send"
)

// Ops returns all operations.
func Ops() []Op { return []Op{Write, Read, Send} }

// Bounds and defaults of Options.
const (
	DefaultIterations = 1000
	MaxIterations     = 1 << 20
	MaxBytes          = 1 << 30

	txDepth  = 128 // requests outstanding, as perftest has it
	rxDepth  = 512 // receives posted, as perftest has it
	postList = 16  // requests of one doorbell and completion
	warmUp   = 16  // iterations before those that count
	signaled = 32  // of single messages, one in so many asks for a completion
)

// DefaultSizes are measured where no size is named, in bytes.
func DefaultSizes() []int64 { return []int64{2, 64, 4 << 10, 16 << 10, 64 << 10, 1 << 20} }

// access is what memory has to be registered for: either side reads, writes and receives.
const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// Options say what is measured. NIC, Local and Remote are required.
type Options struct {
	// NIC is the NIC, and Connect how its two queue pairs are connected.
	NIC     *registry.Registry
	Connect rdma.ConnectOptions
	// Local is host memory that the CPU reaches, of twice the largest size; Remote is any, of the largest size at least. Both are
	// registered with NIC.
	Local, Remote *mem.Region
	// Sizes are the messages' lengths in bytes. Default: DefaultSizes.
	Sizes []int64
	// Iterations is how many messages count at every size. Default 1000.
	Iterations int
	// Ops are what is measured. Default: all.
	Ops []Op
	// Budget is how long the run takes in all, set-up included, from Began on (zero: from the call of Run). What does not fit is left out.
	// Zero: there is no limit.
	Budget time.Duration
	Began  time.Time
	// Progress is told before each operation at each size and after the last, if it is set, and Notice that not all will fit.
	Progress func(done, total int, what string)
	Notice   func(text string)
}

// CheckSizes reports what is wrong with sizes and iterations, before anything is opened for them.
func CheckSizes(sizes []int64, iterations int) error {
	var errs []error
	for _, n := range sizes {
		if n < 1 || n > MaxBytes {
			errs = append(errs, fmt.Errorf("messages of %d bytes are not of 1 to %d: %w", n, MaxBytes, errdefs.ErrInvalid))
		}
	}
	if iterations < 1 || iterations > MaxIterations {
		errs = append(errs, fmt.Errorf("%d iterations are not 1 to %d: %w", iterations, MaxIterations, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

func (o *Options) setDefaults() {
	if len(o.Sizes) == 0 {
		o.Sizes = DefaultSizes()
	}
	if o.Iterations == 0 {
		o.Iterations = DefaultIterations
	}
	if len(o.Ops) == 0 {
		o.Ops = Ops()
	}
	if o.Began.IsZero() {
		o.Began = time.Now()
	}
}

// validate reports everything that is wrong. Defaults are filled in.
func (o *Options) validate() error {
	if o.NIC == nil || o.Local == nil || o.Remote == nil {
		return fmt.Errorf("a NIC and memory of both sides are needed: %w", errdefs.ErrInvalid)
	}
	errs := []error{CheckSizes(o.Sizes, o.Iterations)}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.Local.Bytes() == nil {
		bad("the CPU does not reach the %s, of the local side", o.Local)
	}
	port, err := o.NIC.Device().QueryPort(max(o.Connect.Port, 1))
	if err != nil {
		return err
	}
	for _, n := range o.Sizes {
		if n > int64(port.MaxMessageBytes) {
			bad("messages of %d bytes are longer than the %d of NIC %s port %d", n, port.MaxMessageBytes, o.NIC.Name(), port.Number)
		}
		if 2*n > o.Local.Len() || n > o.Remote.Len() {
			bad("messages of %d bytes need twice that of the local side's %d, and that of the remote side's %d", n, o.Local.Len(), o.Remote.Len())
		}
	}
	if o.Budget < 0 {
		bad("a budget of %v is negative", o.Budget)
	}
	for _, op := range o.Ops {
		if op != Write && op != Read && op != Send {
			bad("there is no operation %q", op)
		}
	}
	return errors.Join(errs...)
}
