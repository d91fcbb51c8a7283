package blocks

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/internal/present"
)

// Kind and Format identify the JSON form of Report and its version.
const (
	Kind   = "blocks"
	Format = 1
)

// Report is the result of a run.
type Report struct {
	Kind      string    `json:"kind"`
	Format    int       `json:"format"`
	CPUs      int       `json:"cpus"`
	GoVersion string    `json:"go_version"`
	Date      time.Time `json:"date"`
	// load of the machine in the minute before the run
	Load        string  `json:"load,omitempty"`
	Command     string  `json:"command,omitempty"` // the caller sets it
	Fabric      string  `json:"fabric,omitempty"`  // device and NIC of RDMA; the caller sets it
	Rounds      int     `json:"rounds"`
	RoundMillis int64   `json:"round_ms"` // duration of one subject in a round
	Points      []Point `json:"points"`
	// Incomplete is the reason for an early end.
	Incomplete string `json:"incomplete,omitempty"`
}

// Point is the result of one subject with one piece length and depth.
type Point struct {
	rounds.Result
	Bytes int64   `json:"bytes"`
	Depth int     `json:"depth"`
	GBps  float64 `json:"gb_per_s"` // 1e9 bytes of pieces per second
}

// of returns the rate of p as a fraction of the rate of subject with the same length and depth.
func (r *Report) of(p *Point, subject string) string {
	for i := range r.Points {
		if o := &r.Points[i]; o.Subject == subject && o.Bytes == p.Bytes && o.Depth == p.Depth && o.OpsPerSecond > 0 {
			return fmt.Sprintf("%.2f", p.OpsPerSecond/o.OpsPerSecond)
		}
	}
	return "-"
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	h := bench.Head{Incomplete: r.Incomplete}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	t.Row("machine", fmt.Sprintf("%d CPUs, %s, load %s before the run", r.CPUs, r.GoVersion, r.Load))
	t.Row("setup", fmt.Sprintf("client and server in this process, loopback; medians of %d interleaved rounds of %d ms", r.Rounds, r.RoundMillis))
	if r.Fabric != "" {
		t.Row("RDMA", r.Fabric)
	}
	t.Row("date", r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		t.Row("command", present.Name(r.Command))
	}
	p.Table(t)
	p.Heading("Retrieves: times in µs")
	points := &present.Table{
		Head: []string{"piece", "depth", "subject", "ops/s", "GB/s", "of sockets", "p50", "p99", "p99.9", "CPU", "allocs"}, Keys: 3, Right: "rrlrrrrrrrr",
	}
	for i := range r.Points {
		at := &r.Points[i]
		points.Row(bench.BytesText(at.Bytes), present.Count(int64(at.Depth)), at.Subject, present.Count(int64(at.OpsPerSecond)), present.Rate(at.GBps), r.of(at, Sockets),
			present.Rate(at.P50Micros), present.Rate(at.P99Micros), present.Rate(at.P999Micros), present.Rate(at.CPUMicros), fmt.Sprintf("%.1f", at.Allocs))
	}
	p.Table(points)
	p.Define(Memory, "copies from the server's memory, without a connection")
	p.Define(Sockets, "bare sockets that pipeline the same frames")
	p.Define(TCP, "a client of a block server, one piece a call")
	p.Define(Batch, "the same, one call at a time for as many pieces as the depth")
	if r.Fabric != "" {
		p.Define(RDMA, "a client that reads by RDMA to pinned memory, one piece a call")
		p.Define(Device, "the same to device memory, and a copy back for the sum")
	}
	p.Define("CPU, allocs", "time and objects of both sides for a retrieve")
	return p.Write(w)
}

// verdict returns a text that compares the rates with those of plain sockets.
func (r *Report) verdict() string {
	var all []string
	for i := range r.Points {
		if p := &r.Points[i]; p.Subject == TCP {
			all = append(all, fmt.Sprintf("%s of %s at depth %d", r.of(p, Sockets), bench.BytesText(p.Bytes), p.Depth))
		}
	}
	if len(all) == 0 {
		return "No point was measured."
	}
	return "Retrieves over TCP reach these shares of bare sockets: " + strings.Join(all, ", ") + "."
}
