package calls

import (
	"cmp"
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
	Kind   = "calls"
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
	Address     string  `json:"address,omitempty"` // empty: a server in this process
	Fabric      string  `json:"fabric,omitempty"`  // device and NIC of RDMA; the caller sets it
	Rounds      int     `json:"rounds"`
	RoundMillis int64   `json:"round_ms"` // duration of one subject in a round
	Points      []Point `json:"points"`
	// Incomplete is the reason for an early end.
	Incomplete string `json:"incomplete,omitempty"`
}

// Point is the result of one subject with one load.
type Point struct {
	rounds.Result
	Callers         int     `json:"callers"`
	BodyBytes       int64   `json:"body_bytes"`
	AttachmentBytes int64   `json:"attachment_bytes"`
	GBps            float64 `json:"gb_per_s"` // 1e9 bytes per second in each direction
	// BesideGBps is the rate of the transfers beside these calls.
	BesideGBps float64 `json:"beside_gb_per_s,omitempty"`
}

// String returns the lengths and the number of callers.
func (l Load) String() string {
	what, n := "a body", l.Body
	if l.Attachment > 0 {
		what, n = "an attachment", l.Attachment
	}
	return fmt.Sprintf("%s of %s by %d callers", what, bench.BytesText(n), l.Callers)
}

func (p *Point) load() Load { return Load{p.Callers, p.BodyBytes, p.AttachmentBytes} }

// of returns the rate of p as a fraction of the rate of subject with the same load.
func (r *Report) of(p *Point, subject string) string {
	for i := range r.Points {
		if o := &r.Points[i]; o.Subject == subject && o.load() == p.load() && o.OpsPerSecond > 0 {
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
	t.Row("server", cmp.Or(r.Address, "in this process, loopback"))
	if r.Fabric != "" {
		t.Row("RDMA", r.Fabric)
	}
	t.Row("setup", fmt.Sprintf("medians of %d interleaved rounds of %d ms", r.Rounds, r.RoundMillis))
	t.Row("date", r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		t.Row("command", present.Name(r.Command))
	}
	p.Table(t)
	p.Heading("Echo calls: times in µs")
	points := &present.Table{
		Head: []string{"body", "attachment", "callers", "subject", "calls/s", "GB/s", "of sockets", "p50", "p99", "p99.9", "CPU", "allocs"}, Keys: 4, Right: "rrrlrrrrrrrr",
	}
	for i := range r.Points {
		at := &r.Points[i]
		points.Row(bench.BytesText(at.BodyBytes), bench.BytesText(at.AttachmentBytes), present.Count(int64(at.Callers)), at.Subject,
			present.Count(int64(at.OpsPerSecond)), present.Rate(at.GBps), r.of(at, Sockets),
			present.Rate(at.P50Micros), present.Rate(at.P99Micros), present.Rate(at.P999Micros), present.Rate(at.CPUMicros), fmt.Sprintf("%.1f", at.Allocs))
	}
	p.Table(points)
	if r.Address == "" {
		p.Define(Sockets, "bare sockets that return the same number of bytes")
	}
	p.Define(RPC, "calls of example.EchoService over one connection")
	if r.Fabric != "" {
		p.Define(RDMA, "the same by RDMA, in host memory")
		p.Define(GPU, "the same, from device memory to blocks of it")
		p.Define(Direct, "the same, placed directly from and to device memory")
	}
	for i := range r.Points {
		if at := &r.Points[i]; at.BesideGBps > 0 {
			p.Define(at.Subject, fmt.Sprintf("calls beside transfers of %s GB/s in each direction on the same connection (%s callers)",
				present.Rate(at.BesideGBps), present.Count(int64(at.Callers))))
		}
	}
	p.Define("CPU, allocs", "time and objects of this process for a call")
	return p.Write(w)
}

// verdict returns a text that compares the rates with those of bare sockets.
func (r *Report) verdict() string {
	var all []string
	for i := range r.Points {
		if p := &r.Points[i]; p.Subject == RPC {
			text := present.Count(int64(p.OpsPerSecond)) + " a second"
			if share := r.of(p, Sockets); share != "-" {
				text += ", " + share + " of bare sockets,"
			}
			all = append(all, text+" with "+p.load().String())
		}
	}
	if len(all) == 0 {
		return "No point was measured."
	}
	return "Calls: " + strings.Join(all, "; ") + "."
}
