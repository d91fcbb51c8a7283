package copy

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// The defaults and limits of Options.
const (
	DefaultQueueDepth  = 1024
	DefaultDescriptors = 256 << 10
	MinDescriptors     = 256
	DefaultCTAs        = move.DefaultCTAs

	DefaultStagingBytes = 4 * 8 << 20
	// BesideStagingBytes is the default with concurrent work: four chunks. Copying a chunk takes
	// about as long as a kernel waits for multiprocessors during a large matrix product.
	BesideStagingBytes = 4 * 64 << 20
	MinStagingBytes    = 4096

	MaxQueueDepth   = 1 << 20
	MaxDescriptors  = 1 << 24
	MaxCTAs         = 1 << 16
	MaxStagingBytes = 1 << 40
)

// Options configures a stream. The zero value is the default.
type Options struct {
	// Path forces every batch onto one path. With PathNone the planner chooses.
	Path stream.Path
	// Planner chooses paths. Nil selects a planner with plan.Default, whose times may be those of
	// another machine.
	Planner Planner
	// Policy is the goal of the choice of paths. The zero value selects the Planner's policy, or
	// throughput without a Planner. Other values require a Planner with a method With(plan.Policy)
	// (*plan.Planner, error).
	Policy plan.Policy
	// QueueDepth is the maximum number of accepted and unresolved batches. Zero selects
	// DefaultQueueDepth.
	QueueDepth int
	// Descriptors is the size of the ring of kernel descriptors in pinned memory, in units of
	// device.CopyDescBytes; at least MinDescriptors. A longer batch is issued in steps. Zero
	// selects DefaultDescriptors.
	Descriptors int
	// CTAs is the number of thread blocks of a copy kernel if the planner does not choose it. Zero
	// selects the path's default, DefaultCTAs for plain kernels.
	CTAs int
	// StagingBytes is the device memory of staged copies, in four chunks. It is allocated when a
	// batch is first planned as staged, or by Open if the path is forced. Zero selects
	// DefaultStagingBytes, or BesideStagingBytes under balanced and background policies. A negative
	// value disables staging.
	StagingBytes int64
	// NIC adds a path by NICs for batches between host and device memory that the NICs can access.
	// It may be nil.
	NIC *Carrier
	// Prepare makes Open acquire the resources of all paths, including the NICs', instead of
	// acquiring them when a path is first chosen. Until Close, nothing is allocated, registered,
	// freed or opened. Streams of the host program that wait for batches (device.StreamAdopter)
	// need this, because a driver may block such calls until those streams have finished. Open
	// fails if a path of the device cannot acquire its resources. Prepare implies HighPriority. A
	// stream with pending work or a pending wait uses one of the hardware's queues. If there are
	// more such streams than queues, streams that share a queue with a waiting stream wait too.
	Prepare bool
	// HighPriority requests queues of the device's highest priority. Balanced and background
	// policies imply it: their kernels have few thread blocks and should not wait behind other
	// work.
	HighPriority bool
	// Clock is the stream's clock. Nil selects the system clock.
	Clock clockwork.Clock
}

// Validate returns an error for every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.QueueDepth < 0 || o.QueueDepth > MaxQueueDepth {
		bad("queue depth %d is not 0 to %d", o.QueueDepth, MaxQueueDepth)
	}
	if o.Descriptors != 0 && (o.Descriptors < MinDescriptors || o.Descriptors > MaxDescriptors) {
		bad("%d descriptors are not %d to %d", o.Descriptors, MinDescriptors, MaxDescriptors)
	}
	if o.CTAs < 0 || o.CTAs > MaxCTAs {
		bad("CTAs %d is not 0 to %d", o.CTAs, MaxCTAs)
	}
	if o.StagingBytes > 0 && (o.StagingBytes < MinStagingBytes || o.StagingBytes > MaxStagingBytes) {
		bad("%d bytes of staging are not %d to %d", o.StagingBytes, MinStagingBytes, int64(MaxStagingBytes))
	}
	if o.NIC != nil {
		o.NIC.validate(bad)
	}
	return errors.Join(append(errs, o.Policy.Validate())...)
}

func (o Options) withDefaults() Options {
	o.QueueDepth = cmp.Or(o.QueueDepth, DefaultQueueDepth)
	o.Descriptors = cmp.Or(o.Descriptors, DefaultDescriptors)
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	weighs := o.Policy.Goal.Weighs()
	o.HighPriority = o.HighPriority || weighs || o.Prepare
	switch {
	case o.StagingBytes != 0:
	case weighs:
		o.StagingBytes = BesideStagingBytes
	default:
		o.StagingBytes = DefaultStagingBytes
	}
	return o
}

// events returns the number of events that the queues of a stream create in advance.
func (o *Options) events() int {
	if !o.Prepare {
		return 0
	}
	return move.MaxCalls
}

// planner returns the planner with the policy.
func (o *Options) planner() (Planner, error) {
	if o.Planner == nil {
		return plan.New(plan.Default(), plan.Options{Policy: o.Policy})
	}
	if o.Policy == (plan.Policy{}) {
		return o.Planner, nil
	}
	p, ok := o.Planner.(interface {
		With(policy plan.Policy) (*plan.Planner, error)
	})
	if !ok {
		return nil, fmt.Errorf("planner %T does not support policies: %w", o.Planner, errdefs.ErrInvalid)
	}
	return p.With(o.Policy)
}
