package bench

import (
	"math"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/device"
)

// Usage is the resource usage of the process.
type Usage struct {
	CPU    time.Duration // CPU time on all processors
	Allocs uint64        // number of allocated heap objects
}

// UsageNow returns the current resource usage of the process. Counting objects stops the process
// for some microseconds; Since does not include this in the CPU time.
func UsageNow() Usage {
	n := mallocs()
	return Usage{CPU: cpuTime(), Allocs: n}
}

// Since returns the usage since u was taken.
func (u Usage) Since() Usage { return Usage{CPU: cpuTime() - u.CPU, Allocs: mallocs() - u.Allocs} }

// NewFacts returns the facts of a run on a device that begins now. It does not set Command.
func NewFacts(i device.Info, began time.Time) Facts {
	return Facts{
		Device: i.Name, UUID: i.UUID, Driver: i.Driver, DriverVersion: i.DriverVersion, Simulated: simulated(i), PCI: i.PCI,
		CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: began,
	}
}

// Finish records the end of the run.
func (f *Facts) Finish() {
	f.Seconds = math.Round(time.Since(f.Date).Seconds()*10) / 10
	f.Date = f.Date.UTC().Truncate(time.Second)
}
