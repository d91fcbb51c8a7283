package nic

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Defaults of Options.
const (
	DefaultQueueDepth   = 1024
	DefaultQueuePairs   = 1
	DefaultSendDepth    = 1024
	DefaultMaxSGE       = 16
	DefaultRequestBytes = 1 << 20
	DefaultStripeBytes  = 256 << 10
	DefaultTimeout      = 30 * time.Second
)

// Access is what memory has to be registered for: the same is the local side of one copy and the remote side of another. PCIe's
// relaxed ordering is not asked for: streams rely on writes to the same bytes landing in the order of their requests.
const Access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// NIC is a NIC that a stream uses.
type NIC struct {
	// Registry is the open NIC with its registered memory. The stream does not own it.
	Registry *registry.Registry
	// Connect says how queue pairs are connected: port, GID and the rest. Port zero: the first active port, its best GID and
	// its MTU, as rdma.FindPort finds them.
	Connect rdma.ConnectOptions
	// Counters are added to by the stream; nil: nobody wants to know.
	Counters *Counters
}

// Options say how a stream is opened. NICs is required; the zero value of every other field asks for its default.
type Options struct {
	// NICs that the stream stripes its copies over, all of one provider. Memory must be registered with all of them.
	NICs []NIC
	// QueuePairs is the number of queue pairs on each NIC.
	QueuePairs int
	// SendDepth is how many requests a queue pair has outstanding, a power of two. What the device has less, it is.
	SendDepth int
	// MaxSGE is how many scatter-gather entries a request has at most. What the device has less, it is.
	MaxSGE int
	// RequestBytes is the longest request. What the port's max_msg_sz is less, it is.
	RequestBytes int64
	// StripeBytes is the length of a stripe, a power of two, where there are several queue pairs.
	StripeBytes int64
	// QueueDepth is how many batches may be accepted and unresolved.
	QueueDepth int
	// Timeout is how long the NIC may be silent while requests are outstanding, before the stream gives up on it.
	Timeout time.Duration
	// RegisterOnUse registers memory that a batch names and that is not registered, which holds up that Submit for
	// milliseconds. It stays registered: the owner of the memory calls registry.Unregister before it frees it. Without it
	// such batches are ErrInvalid.
	RegisterOnUse bool
	// Clock is where the stream has the time from. Nil: the system's.
	Clock clockwork.Clock
	// Flush, where it is not nil, is called with a device's index before a ticket resolves that has written the device's
	// memory: for GPUs whose attribute says that they may see a NIC's writes late otherwise
	// (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS). One call at a time; it may serve several tickets.
	Flush func(device int) error
}

// Validate reports every field that is out of range.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if len(o.NICs) == 0 {
		bad("no NIC is named")
	}
	for i := range o.NICs {
		if o.NICs[i].Registry == nil {
			bad("NIC %d has no registry", i)
		}
	}
	if o.QueuePairs < 0 || o.QueuePairs > channel.MaxPairs {
		bad("%d queue pairs on each NIC are not 0 to %d", o.QueuePairs, channel.MaxPairs)
	} else if n := len(o.NICs) * max(o.QueuePairs, 1); n > channel.MaxPairs {
		bad("%d queue pairs in all are more than %d", n, channel.MaxPairs)
	}
	if o.SendDepth < 0 || o.SendDepth&(o.SendDepth-1) != 0 {
		bad("send depth %d is no power of two", o.SendDepth)
	}
	if o.MaxSGE < 0 {
		bad("%d scatter-gather entries", o.MaxSGE)
	}
	if o.RequestBytes < 0 {
		bad("requests of %d bytes", o.RequestBytes)
	}
	if o.StripeBytes < 0 || o.StripeBytes&(o.StripeBytes-1) != 0 {
		bad("stripes of %d bytes, which is no power of two", o.StripeBytes)
	}
	if o.QueueDepth < 0 {
		bad("queue depth %d", o.QueueDepth)
	}
	if o.Timeout < 0 {
		bad("timeout %v", o.Timeout)
	}
	return errors.Join(errs...)
}

func (o *Options) setDefaults() {
	setDefault(&o.QueuePairs, DefaultQueuePairs)
	setDefault(&o.SendDepth, DefaultSendDepth)
	setDefault(&o.MaxSGE, DefaultMaxSGE)
	setDefault(&o.RequestBytes, DefaultRequestBytes)
	setDefault(&o.StripeBytes, DefaultStripeBytes)
	setDefault(&o.QueueDepth, DefaultQueueDepth)
	setDefault(&o.Timeout, DefaultTimeout)
	setDefault[clockwork.Clock](&o.Clock, clockwork.NewRealClock())
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
