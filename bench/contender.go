package bench

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Policy is what a stream that chooses its paths itself is asked for.
type Policy string

// The policies, by the names that the planner has for them.
const (
	Throughput Policy = "throughput"
	Latency    Policy = "latency"
	Balanced   Policy = "balanced"
	Background Policy = "background"
)

// Baseline is a way to copy without a stream: straight calls of the device's queue, or requests on a NIC's.
type Baseline string

// The baselines.
const (
	NoBaseline  Baseline = ""
	OneCopyEach Baseline = "one-copy-each" // Queue.Copy for each block
	DriverBatch Baseline = "driver-batch"  // BatchCopier.CopyBatch for DriverBatchCopies each: cuMemcpyBatchAsync

	NICChannel     Baseline = "nic-channel"      // requests posted straight on a NIC's queue pair
	NICSoftChannel Baseline = "nic-soft-channel" // the same on a NIC in software
)

// DriverBatchCopies is how many copies DriverBatch hands over in one call, as a careful user does: the device copies while the
// driver looks at the next. One call for tens of thousands takes up to four times as long.
const DriverBatchCopies = 256

// Contender is something that is measured.
type Contender struct {
	// Path is forced on everything; PathNone lets the stream choose, under Policy.
	Path   stream.Path
	Policy Policy
	// Baseline, where set, copies without a stream, and the other fields have no meaning.
	Baseline Baseline
}

// Auto is the name of the stream's own choice; a policy other than throughput follows after a colon.
const Auto = "auto"

// Name names the contender in flags and reports.
func (c Contender) Name() string {
	switch {
	case c.Baseline != NoBaseline:
		return string(c.Baseline)
	case c.Path != stream.PathNone:
		return c.Path.String()
	case c.Policy == Throughput || c.Policy == "":
		return Auto
	}
	return Auto + ":" + string(c.Policy)
}

// Chooses reports whether the stream chooses the path of each batch.
func (c Contender) Chooses() bool { return c.Baseline == NoBaseline && c.Path == stream.PathNone }

// NIC reports whether the contender copies by an RDMA NIC, of hardware or in software.
func (c Contender) NIC() bool {
	return c.Baseline == NICChannel || c.Baseline == NoBaseline && c.Path == stream.PathNIC || c.Soft()
}

// Soft reports whether the contender copies by a NIC in software. Its figures are kept apart, as they say nothing of a NIC.
func (c Contender) Soft() bool {
	return c.Baseline == NICSoftChannel || c.Baseline == NoBaseline && c.Path == stream.PathNICSoft
}

// Contenders returns everything that can be measured: the baselines, every path of package stream that may lead from host
// memory to a device or back, and the stream's own choice under each policy.
func Contenders() []Contender {
	all := []Contender{{Baseline: OneCopyEach}, {Baseline: DriverBatch}, {Baseline: NICChannel}, {Baseline: NICSoftChannel}}
	for _, p := range stream.Paths(stream.MovedByDevice, stream.MovedByNIC) {
		all = append(all, Contender{Path: p})
	}
	for _, p := range []Policy{Throughput, Latency, Balanced, Background} {
		all = append(all, Contender{Policy: p})
	}
	return all
}

// PeerContenders returns what is measured between two devices.
func PeerContenders() []Contender {
	return []Contender{{Baseline: OneCopyEach}, {Path: stream.PathCopyEngine}, {Path: stream.PathKernel}, {Policy: Throughput}}
}

// ParseContender finds a contender between host and device by its name.
func ParseContender(name string) (Contender, error) {
	all := Contenders()
	names := make([]string, len(all))
	for i, c := range all {
		if names[i] = c.Name(); names[i] == name {
			return c, nil
		}
	}
	return Contender{}, fmt.Errorf("there is no path %q: it is one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// defaultContenders are all but the policies that give up bandwidth, with the machine's NICs, or with NICs in software in
// their place.
func defaultContenders(soft bool) []Contender {
	var list []Contender
	for _, c := range Contenders() {
		if c.NIC() && c.Soft() != soft {
			continue
		}
		if c.Name() == Auto || c.Path != stream.PathNone || c.Baseline != NoBaseline {
			list = append(list, c)
		}
	}
	return list
}
