package bench

import (
	"encoding/csv"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// Report is what a run measured, and on what. GBps are 1e9 bytes a second.
type Report struct {
	Machine   Facts     `json:"machine"`
	Setup     Setup     `json:"setup"`
	Reference Reference `json:"reference"`
	Points    []Point   `json:"points"`
	Latency   []Latency `json:"latency"`
	Missing   []Missing `json:"missing"`
}

// Facts says where and when the figures were made. Command is for the caller to fill in.
type Facts struct {
	Device        string    `json:"device"`
	Driver        string    `json:"driver"`
	DriverVersion string    `json:"driver_version"`
	Simulated     bool      `json:"simulated"` // then no figure says anything of hardware
	PCI           string    `json:"pci,omitempty"`
	CPUs          int       `json:"cpus"`
	GoVersion     string    `json:"go_version"`
	Date          time.Time `json:"date"`
	Command       string    `json:"command,omitempty"`
}

// Setup is what the run was asked for, with the defaults filled in.
type Setup struct {
	Bytes          int64  `json:"bytes"`
	PoolBytes      int64  `json:"pool_bytes"`
	ReferenceBytes int64  `json:"reference_bytes"`
	BatchBytes     int64  `json:"batch_bytes"`
	Reps           int    `json:"reps"`
	Samples        int    `json:"samples"`
	Form           string `json:"form"` // "extents" or "pages"
	Seed           uint64 `json:"seed"`
}

// Reference is one large copy: what everything else is compared with.
type Reference struct {
	ToDeviceGBps float64 `json:"h2d_gbps"`
	ToHostGBps   float64 `json:"d2h_gbps"`
	BothGBps     float64 `json:"both_gbps"` // both ways at once, in sum
}

// Point is the bandwidth of one path at one block size: the median of the repetitions, the least and the most.
type Point struct {
	Path      string    `json:"path"`
	Size      int64     `json:"block_bytes"`
	Direction Direction `json:"direction"`
	Layout    Layout    `json:"layout"`
	Bytes     int64     `json:"bytes"`
	GBps      float64   `json:"gbps"`
	MinGBps   float64   `json:"min_gbps"`
	MaxGBps   float64   `json:"max_gbps"`
	// Share is GBps over that of one large copy in the same direction.
	Share float64 `json:"share_of_large_copy"`
}

// Latency is what one 4 KiB block takes from Submit to done, and what Submit alone costs for a block of many.
type Latency struct {
	Path                string  `json:"path"`
	ToDeviceP50Micros   float64 `json:"h2d_p50_us"`
	ToDeviceP99Micros   float64 `json:"h2d_p99_us"`
	ToHostP50Micros     float64 `json:"d2h_p50_us"`
	ToHostP99Micros     float64 `json:"d2h_p99_us"`
	SubmitNanosPerBlock float64 `json:"submit_ns_per_block"`
}

// Missing is a path that the device does not have.
type Missing struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// PathName names a path in reports; the stream's own choice is "auto".
func PathName(p stream.Path) string {
	if p == stream.PathNone {
		return "auto"
	}
	return p.String()
}

func newReport(i device.Info, o *Options) *Report {
	form := "extents"
	if o.Paged {
		form = "pages"
	}
	return &Report{
		Machine: Facts{
			Device: i.Name, Driver: i.Driver, DriverVersion: i.DriverVersion, Simulated: simulated(i), PCI: i.PCI,
			CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second),
		},
		Setup: Setup{
			Bytes: o.Bytes, PoolBytes: o.PoolBytes, ReferenceBytes: o.ReferenceBytes, BatchBytes: o.BatchBytes,
			Reps: o.Reps, Samples: o.Samples, Form: form, Seed: o.Seed,
		},
		Points: []Point{}, Latency: []Latency{}, Missing: []Missing{},
	}
}

func (r *Report) add(p Point) {
	ref := r.Reference.ToDeviceGBps
	if p.Direction == ToHost {
		ref = r.Reference.ToHostGBps
	}
	if ref > 0 {
		p.Share = p.GBps / ref
	}
	r.Points = append(r.Points, p)
}

// WriteText writes the report for people, as tables in Markdown.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	f := &r.Machine
	if f.Simulated {
		b.WriteString("SIMULATED: the figures describe the simulated device, not hardware.\n\n")
	}
	fmt.Fprintf(&b, "device     %s (%s, driver %s)\n", f.Device, f.Driver, f.DriverVersion)
	fmt.Fprintf(&b, "machine    %d CPUs, %s\n", f.CPUs, f.GoVersion)
	fmt.Fprintf(&b, "date       %s\n", f.Date.Format("2006-01-02 15:04 MST"))
	if f.Command != "" {
		fmt.Fprintf(&b, "command    %s\n", f.Command)
	}
	s := &r.Setup
	fmt.Fprintf(&b, "setup      %s a repetition in batches of %s (%s), blocks scattered over %s of device memory, median of %d, seed %d\n",
		bytesText(s.Bytes), bytesText(s.BatchBytes), s.Form, bytesText(s.PoolBytes), s.Reps, s.Seed)
	fmt.Fprintf(&b, "large copy %s: %.1f GB/s host to device, %.1f back, %.1f both ways at once in sum\n",
		bytesText(s.ReferenceBytes), r.Reference.ToDeviceGBps, r.Reference.ToHostGBps, r.Reference.BothGBps)
	for _, layout := range []Layout{HostContiguous, HostScattered} {
		r.table(&b, layout)
	}
	r.latencies(&b)
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "\nnot measured: %s: %s\n", m.Path, m.Reason)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// table writes one layout: a row a path, a column a block size, in each "H2D / D2H (% / %)".
func (r *Report) table(b *strings.Builder, layout Layout) {
	var sizes []int64
	var paths []string
	type cell struct {
		path string
		size int64
		dir  Direction
	}
	at := make(map[cell]Point)
	for _, p := range r.Points {
		if p.Layout != layout {
			continue
		}
		if !slices.Contains(sizes, p.Size) {
			sizes = append(sizes, p.Size)
		}
		if !slices.Contains(paths, p.Path) {
			paths = append(paths, p.Path)
		}
		at[cell{p.Path, p.Size, p.Direction}] = p
	}
	fmt.Fprintf(b, "\nScattered device blocks, %s: GB/s host to device / device to host (%% of one large copy)\n\n", layout)
	tw := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	fmt.Fprint(tw, "| path\t")
	for _, size := range sizes {
		fmt.Fprintf(tw, "| %s\t", bytesText(size))
	}
	fmt.Fprint(tw, "|\n|---\t"+strings.Repeat("|---\t", len(sizes))+"|\n")
	for _, path := range paths {
		fmt.Fprintf(tw, "| %s\t", path)
		for _, size := range sizes {
			in, out := at[cell{path, size, ToDevice}], at[cell{path, size, ToHost}]
			fmt.Fprintf(tw, "| %.1f / %.1f (%.0f / %.0f)\t", in.GBps, out.GBps, 100*in.Share, 100*out.Share)
		}
		fmt.Fprint(tw, "|\n")
	}
	_ = tw.Flush() // into memory: it cannot fail
}

func (r *Report) latencies(b *strings.Builder) {
	fmt.Fprintf(b, "\nOne %s block from Submit to done, and what Submit costs a block in batches of up to %d\n\n", bytesText(smallBytes), submitBlocks)
	tw := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	fmt.Fprint(tw, "| path\t| H2D p50 us\t| p99\t| D2H p50 us\t| p99\t| Submit ns a block\t|\n|---\t|---\t|---\t|---\t|---\t|---\t|\n")
	for _, l := range r.Latency {
		fmt.Fprintf(tw, "| %s\t| %.1f\t| %.1f\t| %.1f\t| %.1f\t| %.0f\t|\n", l.Path, l.ToDeviceP50Micros, l.ToDeviceP99Micros,
			l.ToHostP50Micros, l.ToHostP99Micros, l.SubmitNanosPerBlock)
	}
	_ = tw.Flush() // into memory: it cannot fail
}

// WriteCSV writes the points, one a line, with a header line. Every line says whether it was simulated, as lines get
// parted from their file.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"device", "simulated", "path", "block_bytes", "direction", "layout", "bytes", "gbps", "min_gbps", "max_gbps", "share_of_large_copy"}}
	float := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	for _, p := range r.Points {
		rows = append(rows, []string{
			r.Machine.Device, strconv.FormatBool(r.Machine.Simulated), p.Path, strconv.FormatInt(p.Size, 10), string(p.Direction), string(p.Layout),
			strconv.FormatInt(p.Bytes, 10), float(p.GBps), float(p.MinGBps), float(p.MaxGBps), float(p.Share),
		})
	}
	if err := c.WriteAll(rows); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func bytesText(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d %s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
