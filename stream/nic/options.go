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

// The defaults of Options.
const (
	DefaultQueueDepth   = 1024
	DefaultQueuePairs   = 1
	DefaultSendDepth    = 1024
	DefaultMaxSGE       = 16
	DefaultRequestBytes = 1 << 20
	DefaultStripeBytes  = 256 << 10
	DefaultTimeout      = 30 * time.Second
)

// Access is the access with which memory must be registered. A region is the local side of some
// copies and the remote side of others. PCIe relaxed ordering is not requested, because streams
// rely on the order of writes to the same bytes.
const Access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// NIC describes a NIC of a stream.
type NIC struct {
	// Registry is the open NIC with its registered memory. The stream does not own it.
	Registry *registry.Registry
	// Connect configures queue pairs: port, GID and others. Port zero selects the first active port
	// with its best GID and its MTU, like rdma.FindPort.
	Connect rdma.ConnectOptions
	// Counters is updated by the stream. It may be nil.
	Counters *Counters
}

// Options configures a stream. NICs is required. The zero value of any other field selects its
// default.
type Options struct {
	// NICs carry the copies, striped over them. All must be of one provider. Memory must be
	// registered with all of them.
	NICs []NIC
	// QueuePairs is the number of queue pairs on each NIC.
	QueuePairs int
	// SendDepth is the maximum number of outstanding requests of a queue pair, a power of two. The
	// device's limit bounds it.
	SendDepth int
	// MaxSGE is the maximum number of scatter-gather entries of a request. The device's limit
	// bounds it.
	MaxSGE int
	// RequestBytes is the maximum length of a request. The port's max_msg_sz bounds it.
	RequestBytes int64
	// StripeBytes is the length of a stripe over several queue pairs, a power of two.
	StripeBytes int64
	// QueueDepth is the maximum number of accepted and unresolved batches.
	QueueDepth int
	// Timeout is the longest time without a completion while requests are outstanding. After that
	// the stream breaks.
	Timeout time.Duration
	// RegisterOnUse makes Submit register memory that is not registered, which takes milliseconds.
	// The memory stays registered until its owner calls registry.Unregister, which must be before
	// it is freed. Without RegisterOnUse such batches are ErrInvalid.
	RegisterOnUse bool
	// Clock is the stream's clock. Nil selects the system clock.
	Clock clockwork.Clock
	// Flush makes a NIC's writes to a device visible there. If it is set, the stream calls it
	// before it resolves a ticket whose batch has written to the device's memory.
	// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS states whether a GPU needs it. Calls
	// do not overlap. One call may serve several tickets.
	Flush func(device int) error
}

// Validate returns an error for every field that is out of range.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if len(o.NICs) == 0 {
		bad("no NIC is given")
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
		bad("send depth %d is not a power of two", o.SendDepth)
	}
	if o.MaxSGE < 0 {
		bad("%d scatter-gather entries", o.MaxSGE)
	}
	if o.RequestBytes < 0 {
		bad("requests of %d bytes", o.RequestBytes)
	}
	if o.StripeBytes < 0 || o.StripeBytes&(o.StripeBytes-1) != 0 {
		bad("stripes of %d bytes: must be a power of two", o.StripeBytes)
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
