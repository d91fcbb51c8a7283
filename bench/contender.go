package bench

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Policy is the goal by which a stream chooses paths.
type Policy string

// Policies. The names are those of the planner.
const (
	Throughput Policy = "throughput"
	Latency    Policy = "latency"
	Balanced   Policy = "balanced"
	Background Policy = "background"
)

// Baseline is a method to copy without a stream: with calls of the device's queue, or with requests
// on a NIC's queue pair.
type Baseline string

// Baselines.
const (
	NoBaseline  Baseline = ""
	OneCopyEach Baseline = "one-copy-each" // Queue.Copy for each block
	// DriverBatch calls BatchCopier.CopyBatch (cuMemcpyBatchAsync) for DriverBatchCopies blocks at
	// a time.
	DriverBatch Baseline = "driver-batch"

	NICChannel     Baseline = "nic-channel"      // requests on the queue pair of a NIC
	NICSoftChannel Baseline = "nic-soft-channel" // requests on the queue pair of a software NIC
)

// DriverBatchCopies is the number of copies in one call of DriverBatch. The device copies while the
// driver processes the next call. One call for tens of thousands of copies would take up to four
// times as long.
const DriverBatchCopies = 256

// Contender is a method of copying to measure.
type Contender struct {
	// Path is the path for all batches. With PathNone the stream chooses paths by Policy.
	Path   stream.Path
	Policy Policy
	// Baseline copies without a stream. If it is set, the other fields are ignored.
	Baseline Baseline
}

// Auto is the name of contenders with automatic choice of paths. For policies other than
// throughput, a colon and the policy follow.
const Auto = "auto"

// Name returns the name for flags and reports.
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

// NIC reports whether the contender copies with an RDMA NIC, hardware or software.
func (c Contender) NIC() bool {
	return c.Baseline == NICChannel || c.Baseline == NoBaseline && c.Path == stream.PathNIC || c.Soft()
}

// Soft reports whether the contender copies with a software NIC. Its results are reported
// separately, because they do not describe a NIC.
func (c Contender) Soft() bool {
	return c.Baseline == NICSoftChannel || c.Baseline == NoBaseline && c.Path == stream.PathNICSoft
}

// Contenders returns all contenders: the baselines, every path between host memory and a device,
// and automatic choice under each policy.
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

// PeerContenders returns the contenders for copies between two devices.
func PeerContenders() []Contender {
	return []Contender{{Baseline: OneCopyEach}, {Path: stream.PathCopyEngine}, {Path: stream.PathKernel}, {Policy: Throughput}}
}

// ParseContender returns the contender with a name, among those between host and device.
func ParseContender(name string) (Contender, error) {
	all := Contenders()
	names := make([]string, len(all))
	for i, c := range all {
		if names[i] = c.Name(); names[i] == name {
			return c, nil
		}
	}
	return Contender{}, fmt.Errorf("unknown path %q: must be one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// defaultContenders returns all contenders except policies that trade bandwidth for latency. It
// includes contenders with hardware NICs, or with software NICs if soft is true.
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
