package transfer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
)

// Format is the version of Report's JSON form.
const Format = 1

// Report is what was measured.
type Report struct {
	Format    int       `json:"format"`
	Protocol  string    `json:"protocol"`
	Target    string    `json:"target"`
	Op        Op        `json:"operation"`
	Threads   int       `json:"threads"`
	Checked   bool      `json:"checked"` // every batch's bytes were compared
	CPUs      int       `json:"cpus"`
	GoVersion string    `json:"go_version"`
	Date      time.Time `json:"date"`
	Command   string    `json:"command,omitempty"` // for the caller to fill in
	Points    []Point   `json:"points"`
	// Incomplete says why the run ended before its end, if it did.
	Incomplete string `json:"incomplete,omitempty"`
}

// Point is one block size and batch size. Times are of batches, in microseconds: Prep writes the list of blocks, Post submits it, Tx is from
// there until the batch is done.
type Point struct {
	BlockBytes    int64   `json:"block_bytes"`
	Blocks        int     `json:"blocks"`
	Batches       int     `json:"batches"` // of all threads
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`      // that a thread spent, at the mean, without checking
	GBps          float64 `json:"gb_per_s"`     // 1e9 bytes a second, of all threads
	BlockMicros   float64 `json:"block_avg_us"` // a batch's time by its blocks
	PrepMicros    float64 `json:"prep_avg_us"`
	PrepP99Micros float64 `json:"prep_p99_us"`
	PostMicros    float64 `json:"post_avg_us"`
	PostP99Micros float64 `json:"post_p99_us"`
	TxMicros      float64 `json:"tx_avg_us"`
	TxP99Micros   float64 `json:"tx_p99_us"`
}

// summarize makes a point of what its threads did.
func summarize(threads []*thread) *Point {
	t := threads[0]
	p := &Point{BlockBytes: t.size, Blocks: t.batch}
	var prep, post, tx []float64
	var spent time.Duration
	for _, t := range threads {
		prep, post, tx = append(prep, t.prep...), append(post, t.post...), append(tx, t.tx...)
		spent += t.spent
	}
	p.Batches = len(tx)
	p.Bytes = t.size * int64(t.batch) * int64(p.Batches)
	p.Seconds = spent.Seconds() / float64(len(threads))
	p.GBps = float64(p.Bytes) / p.Seconds / 1e9
	p.PrepMicros, p.PrepP99Micros = meanAndP99(prep)
	p.PostMicros, p.PostP99Micros = meanAndP99(post)
	p.TxMicros, p.TxP99Micros = meanAndP99(tx)
	p.BlockMicros = (p.PostMicros + p.TxMicros) / float64(t.batch)
	return p
}

func meanAndP99(v []float64) (mean, p99 float64) {
	if len(v) == 0 {
		return 0, 0
	}
	slices.Sort(v)
	for _, x := range v {
		mean += x
	}
	return mean / float64(len(v)), v[(len(v)*99+99)/100-1]
}

// Summary is the line that the field's benchmark prints of a point.
func (p *Point) Summary() string {
	return fmt.Sprintf("Test completed: duration %.2f, batch count %d, throughput %.2f GB/s", p.Seconds, p.Batches, p.GBps)
}

// WriteText writes the report for people: nixlbench's columns, and below them the summary of each point.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	bench.WriteIncomplete(&b, r.Incomplete)
	fmt.Fprintf(&b, "protocol   %s\ntarget     %s\noperation  %s, %d threads", r.Protocol, r.Target, r.Op, r.Threads)
	if r.Checked {
		b.WriteString(", every batch checked, which does not count as time")
	}
	fmt.Fprintf(&b, "\nmachine    %d CPUs, %s\ndate       %s\n", r.CPUs, r.GoVersion, r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		fmt.Fprintf(&b, "command    %s\n", r.Command)
	}
	b.WriteString("\n" + bench.NIXLHead())
	for i := range r.Points {
		p := &r.Points[i]
		b.WriteString(bench.NIXLRow{
			BlockBytes: p.BlockBytes, Blocks: int64(p.Blocks), GBps: p.GBps, BlockMicros: p.BlockMicros, PrepMicros: p.PrepMicros, PrepP99Micros: p.PrepP99Micros,
			PostMicros: p.PostMicros, PostP99Micros: p.PostP99Micros, TxMicros: p.TxMicros, TxP99Micros: p.TxP99Micros,
		}.String())
	}
	b.WriteString("\n")
	for i := range r.Points {
		b.WriteString(r.Points[i].Summary() + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
