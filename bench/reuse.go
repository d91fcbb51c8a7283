package bench

import (
	"math"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/device"
)

// What benchmarks of other things than copies share with this one.

// GBps is the rate of so many bytes, in 1e9 bytes a second.
func GBps(bytes int64, took time.Duration) float64 { return rate(bytes, took) }

// Usage is what the process used since it began.
type Usage struct {
	CPU    time.Duration // of all processors
	Allocs uint64        // heap objects made
}

// UsageNow returns what the process has used until now. It stops the process for some microseconds to count objects, which are not
// in the CPU time that Since finds.
func UsageNow() Usage {
	n := mallocs()
	return Usage{CPU: cpuTime(), Allocs: n}
}

// Since returns what the process has used since u.
func (u Usage) Since() Usage { return Usage{CPU: cpuTime() - u.CPU, Allocs: mallocs() - u.Allocs} }

// NewFacts returns the facts of a run that begins now on a device, but for the command.
func NewFacts(i device.Info, began time.Time) Facts {
	return Facts{
		Device: i.Name, UUID: i.UUID, Driver: i.Driver, DriverVersion: i.DriverVersion, Simulated: simulated(i), PCI: i.PCI,
		CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: began,
	}
}

// Finish notes that the run has ended.
func (f *Facts) Finish() {
	f.Seconds = math.Round(time.Since(f.Date).Seconds()*10) / 10
	f.Date = f.Date.UTC().Truncate(time.Second)
}

// WritePattern fills b, whole words of 8 bytes, with what lies from byte off on in the endless sequence of a tag. No two words of
// sequences whose tags are far apart are alike but by accident.
func WritePattern(b []byte, tag uint64, off int64) { writePattern(b, tag, off) }

// CheckPattern compares b with what WritePattern writes. ErrCorrupt names the first word that differs.
func CheckPattern(b []byte, tag uint64, off int64) error { return checkPattern(b, tag, off) }

// Parallel calls f for n things in parts, one a processor, and returns the first error.
func Parallel(n int64, f func(from, to int64) error) error { return parallel(n, f) }
