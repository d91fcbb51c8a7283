package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
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

// WriteTable writes rows of equal length as an aligned table in Markdown; the first is the header.
func WriteTable(w io.Writer, rows [][]string) {
	var t table
	for i, row := range rows {
		if i == 0 {
			t = newTable(w, row[0])
			for _, cell := range row[1:] {
				t.put("| %s\t", cell)
			}
			t.rule(len(row) - 1)
			continue
		}
		for _, cell := range row {
			t.put("| %s\t", cell)
		}
		t.put("|\n")
	}
	if len(rows) > 0 {
		t.end()
	}
}

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

// WriteText writes the facts as lines for people.
func (f *Facts) WriteText(b *strings.Builder) {
	fmt.Fprintf(b, "device     %s (%s, driver %s)\n", f.Device, f.Driver, f.DriverVersion)
	if f.UUID != "" {
		fmt.Fprintf(b, "uuid       %s\n", f.UUID)
	}
	fmt.Fprintf(b, "machine    %d CPUs, %s\n", f.CPUs, f.GoVersion)
	fmt.Fprintf(b, "date       %s, %.1f s\n", f.Date.Format("2006-01-02 15:04 MST"), f.Seconds)
	if f.Command != "" {
		fmt.Fprintf(b, "command    %s\n", f.Command)
	}
}

// WritePattern fills b, whole words of 8 bytes, with what lies from byte off on in the endless sequence of a tag. No two words of
// sequences whose tags are far apart are alike but by accident.
func WritePattern(b []byte, tag uint64, off int64) { writePattern(b, tag, off) }

// CheckPattern compares b with what WritePattern writes. ErrCorrupt names the first word that differs.
func CheckPattern(b []byte, tag uint64, off int64) error { return checkPattern(b, tag, off) }

// Parallel calls f for n things in parts, one a processor, and returns the first error.
func Parallel(n int64, f func(from, to int64) error) error { return parallel(n, f) }

// WriteIncomplete writes first of a report that it is of a part of its run, if it is.
func WriteIncomplete(b *strings.Builder, why string) {
	if why != "" {
		fmt.Fprintf(b, "INCOMPLETE: %s. What follows was measured before.\n\n", why)
	}
}

// namedPlaces is how many of those that were left out the text names; JSON has all.
const namedPlaces = 6

// WriteLeftOut names places that a budget was too short for.
func WriteLeftOut(b *strings.Builder, places []string, budgetSeconds float64) {
	if len(places) == 0 {
		return
	}
	fmt.Fprintf(b, "\nleft out: %d places did not fit the budget of %g s: %s", len(places), budgetSeconds, strings.Join(places[:min(len(places), namedPlaces)], "; "))
	if more := len(places) - namedPlaces; more > 0 {
		fmt.Fprintf(b, "; and %d more, which JSON names", more)
	}
	b.WriteString("\n")
}
