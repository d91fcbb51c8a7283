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

// Defaults and limits of Options.
const (
	DefaultQueueDepth  = 1024
	DefaultDescriptors = 256 << 10
	MinDescriptors     = 256
	DefaultCTAs        = move.DefaultCTAs

	DefaultStagingBytes = 4 * 8 << 20
	// BesideStagingBytes are four chunks of which each keeps the bus busy for about as long as it takes to get multiprocessors
	// beside a large matrix product.
	BesideStagingBytes = 4 * 64 << 20
	MinStagingBytes    = 4096

	MaxQueueDepth   = 1 << 20
	MaxDescriptors  = 1 << 24
	MaxCTAs         = 1 << 16
	MaxStagingBytes = 1 << 40
)

// Options says how a stream is opened. The zero value is the default.
type Options struct {
	// Path forces every batch onto one path; PathNone has the planner choose.
	Path stream.Path
	// Planner chooses. Nil: one that predicts from plan.Default, figures of another machine maybe.
	Planner Planner
	// Policy says what to choose for. The zero value is what Planner is for, and throughput where there is none. With a Planner of
	// one's own, anything else needs one that has With(plan.Policy) (*plan.Planner, error).
	Policy plan.Policy
	// QueueDepth is how many batches may be accepted and unresolved. Zero: DefaultQueueDepth.
	QueueDepth int
	// Descriptors is the size of the ring of kernel descriptors in pinned memory, in pieces of device.CopyDescBytes;
	// at least MinDescriptors. A longer batch is issued in parts. Zero: DefaultDescriptors.
	Descriptors int
	// CTAs is how many thread blocks a copy kernel may have where the planner does not say. Zero: what suits the path,
	// DefaultCTAs for plain kernels.
	CTAs int
	// StagingBytes is how much device memory staged batches are gathered in, in four chunks. It is allocated when one is
	// first planned, or at once if the path is forced. Zero: DefaultStagingBytes, and under policies that weigh harm
	// (balanced and background) BesideStagingBytes; negative: no staging.
	StagingBytes int64
	// NIC adds the path of its name, for batches between host and device memory that the NIC reaches. Nil: there is none.
	NIC *Carrier
	// Prepare makes Open acquire the resources of all paths, the NIC's included, instead of
	// acquiring them when a path is first chosen. Until Close, nothing is allocated, registered,
	// freed or opened. Streams of the host program that wait for batches (device.StreamAdopter)
	// need this: a driver may block such calls until those streams have finished. Open fails if a
	// path that the device has cannot get its resources. HighPriority is implied. A stream with
	// pending work, or with a pending wait, uses one of the hardware's queues. If there are more
	// such streams than queues, streams that share a queue with a waiting stream wait too.
	Prepare bool
	// HighPriority asks the device for queues of its highest priority. Policies that weigh harm always do: their kernels have few
	// thread blocks, and should not wait for what computes beside them longer than they must.
	HighPriority bool
	// Clock is where the stream has the time from. Nil: the system's.
	Clock clockwork.Clock
}

// Validate reports every field that is out of range.
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
	beside := o.Policy.Goal.Weighs()
	o.HighPriority = o.HighPriority || beside || o.Prepare
	switch {
	case o.StagingBytes != 0:
	case beside:
		o.StagingBytes = BesideStagingBytes
	default:
		o.StagingBytes = DefaultStagingBytes
	}
	return o
}

// events is how many events the queues of a stream make ahead: they share them.
func (o *Options) events() int {
	if !o.Prepare {
		return 0
	}
	return move.MaxCalls
}

// planner returns the planner under the policy.
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
		return nil, fmt.Errorf("planner %T takes no policy: %w", o.Planner, errdefs.ErrInvalid)
	}
	return p.With(o.Policy)
}
