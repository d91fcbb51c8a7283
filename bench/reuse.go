package bench

import (
	"math"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/device"
)

// This file exports parts that other benchmarks use.

// GBps returns the rate in 1e9 bytes per second.
func GBps(bytes int64, took time.Duration) float64 { return rate(bytes, took) }

// Usage is the resources that the process has used.
type Usage struct {
	CPU    time.Duration // of all processors
	Allocs uint64        // allocated heap objects
}

// UsageNow returns the usage of the process. Counting objects stops the process for some
// microseconds, which Since does not include in the CPU time.
func UsageNow() Usage {
	n := mallocs()
	return Usage{CPU: cpuTime(), Allocs: n}
}

// Since returns the usage since u.
func (u Usage) Since() Usage { return Usage{CPU: cpuTime() - u.CPU, Allocs: mallocs() - u.Allocs} }

// NewFacts returns the facts of a run that begins now on a device, without the command.
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

// WritePattern fills b, whole words of 8 bytes, with the sequence of a tag from byte off on. Words
// of sequences whose tags are far apart differ except by accident.
func WritePattern(b []byte, tag uint64, off int64) { writePattern(b, tag, off) }

// CheckPattern compares b with the bytes of WritePattern. ErrCorrupt names the first word that
// differs.
func CheckPattern(b []byte, tag uint64, off int64) error { return checkPattern(b, tag, off) }

// Parallel calls f for n elements in one part per processor, and returns the first error.
func Parallel(n int64, f func(from, to int64) error) error { return parallel(n, f) }
