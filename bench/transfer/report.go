package transfer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/present"
)

// Format is the version of Report's JSON form.
const Format = 1

// Report is the result of a run.
type Report struct {
	Format    int       `json:"format"`
	Protocol  string    `json:"protocol"`
	Target    string    `json:"target"`
	Op        Op        `json:"operation"`
	Threads   int       `json:"threads"`
	Checked   bool      `json:"checked"` // the bytes of every batch were verified
	CPUs      int       `json:"cpus"`
	GoVersion string    `json:"go_version"`
	Date      time.Time `json:"date"`
	Command   string    `json:"command,omitempty"` // the caller sets it
	Points    []Point   `json:"points"`
	// LeftOut lists points that did not fit BudgetSeconds. Zero BudgetSeconds: no budget.
	BudgetSeconds float64  `json:"budget_seconds,omitempty"`
	LeftOut       []string `json:"left_out,omitempty"`
	// Incomplete is the reason if the run ended early.
	Incomplete string `json:"incomplete,omitempty"`
}

// Point is the result for one block size and batch size. Times are of batches in microseconds: Prep
// prepares the list of blocks, Post submits it, Tx is the rest.
type Point struct {
	BlockBytes int64 `json:"block_bytes"`
	Blocks     int   `json:"blocks"`
	Batches    int   `json:"batches"` // batches of all threads
	// GivenUp is the number of batches in progress at the end of the budget. They are not counted.
	GivenUp int   `json:"given_up,omitempty"`
	Bytes   int64 `json:"bytes"`
	// MovedBytes includes verification. It is set only if NVLink counters are available.
	MovedBytes  int64   `json:"moved_bytes,omitempty"`
	NVLinkBytes int64   `json:"nvlink_bytes,omitempty"` // from the counters of the local GPU
	Seconds     float64 `json:"seconds"`                // mean of the threads, without verification
	// total of all threads, in units of 1e9 bytes per second
	GBps          float64 `json:"gb_per_s"`
	BlockMicros   float64 `json:"block_avg_us"` // time of a batch divided by its number of blocks
	PrepMicros    float64 `json:"prep_avg_us"`
	PrepP99Micros float64 `json:"prep_p99_us"`
	PostMicros    float64 `json:"post_avg_us"`
	PostP99Micros float64 `json:"post_p99_us"`
	TxMicros      float64 `json:"tx_avg_us"`
	TxP99Micros   float64 `json:"tx_p99_us"`
}

// summarize computes the results from the threads.
func (p *Point) summarize(threads []*thread) {
	var prep, post, tx []float64
	var spent time.Duration
	for _, t := range threads {
		prep, post, tx = append(prep, t.prep...), append(post, t.post...), append(tx, t.tx...)
		spent += t.spent
		if t.givenUp {
			p.GivenUp++
		}
	}
	p.Batches = len(tx)
	p.Bytes = p.BlockBytes * int64(p.Blocks) * int64(p.Batches)
	p.Seconds = spent.Seconds() / float64(len(threads))
	p.GBps = float64(p.Bytes) / p.Seconds / 1e9
	p.PrepMicros, p.PrepP99Micros = meanAndP99(prep)
	p.PostMicros, p.PostP99Micros = meanAndP99(post)
	p.TxMicros, p.TxP99Micros = meanAndP99(tx)
	p.BlockMicros = (p.PostMicros + p.TxMicros) / float64(p.Blocks)
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

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	h := bench.Head{Incomplete: r.Incomplete}
	h.LeftOut(r.LeftOut, r.BudgetSeconds)
	for i := range r.Points {
		if p := &r.Points[i]; p.GivenUp > 0 {
			h.Notes = append(h.Notes, fmt.Sprintf("%s of %d x %s: batches cancelled at the end of the budget, not counted: %d",
				r.Op, p.Blocks, bench.BytesText(p.BlockBytes), p.GivenUp))
		}
	}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	t.Row("protocol", r.Protocol)
	t.Row("target", present.Name(r.Target))
	how := fmt.Sprintf("%s, %s", r.Op, present.Things(int64(r.Threads), "thread"))
	if r.Checked {
		how += ", every batch verified outside the measured time"
	}
	t.Row("operation", how)
	if low, high, ok := r.crossed(); ok {
		t.Row("NVLink", fmt.Sprintf("its counters saw %.1f to %.1f%% of the bytes of each point", low, high))
	}
	t.Row("machine", fmt.Sprintf("%d CPUs, %s", r.CPUs, r.GoVersion))
	t.Row("date", r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		t.Row("command", present.Name(r.Command))
	}
	p.Table(t)
	p.Heading("Batches: µs at the mean (p99)")
	points := &present.Table{Head: []string{"block", "batch", "GB/s", "a block", "prep", "post", "tx", "batches"}, Keys: 2, Right: "rrrrrrrr"}
	both := func(mean, p99 float64) string { return fmt.Sprintf("%s (%s)", present.Rate(mean), present.Rate(p99)) }
	for i := range r.Points {
		at := &r.Points[i]
		points.Row(bench.BytesText(at.BlockBytes), present.Count(int64(at.Blocks)), present.Rate(at.GBps), present.Rate(at.BlockMicros), both(at.PrepMicros, at.PrepP99Micros),
			both(at.PostMicros, at.PostP99Micros), both(at.TxMicros, at.TxP99Micros), present.Count(int64(at.Batches)))
	}
	p.Table(points)
	p.Define("GB/s", "1e9 bytes a second, of all threads")
	p.Define("a block", "a batch's time by its blocks")
	p.Define("prep", "writing the list of a batch's blocks")
	p.Define("post", "submitting the batch")
	p.Define("tx", "from there until it is done")
	if len(r.Points) > 0 {
		p.Gap()
		p.Text("%s", r.Summary())
	}
	return p.Write(w)
}

// crossed returns the percentage of the bytes that the NVLink counters counted: the minimum and the
// maximum over all points.
func (r *Report) crossed() (low, high float64, ok bool) {
	for i := range r.Points {
		if p := &r.Points[i]; p.MovedBytes > 0 {
			saw := 100 * float64(p.NVLinkBytes) / float64(p.MovedBytes)
			if !ok {
				low, high, ok = saw, saw, true
			}
			low, high = min(low, saw), max(high, saw)
		}
	}
	return low, high, ok
}

// Summary returns the result line in the format of transfer_engine_bench, for all points.
func (r *Report) Summary() string {
	var batches, bytes int64
	var seconds float64
	for i := range r.Points {
		p := &r.Points[i]
		batches, bytes, seconds = batches+int64(p.Batches), bytes+p.Bytes, seconds+p.Seconds
	}
	return fmt.Sprintf("Test completed: duration %.2f, batch count %d, throughput %.2f GB/s", seconds, batches, float64(bytes)/max(seconds, 1e-9)/1e9)
}

// WriteNIXL writes the points in the format of nixlbench.
func (r *Report) WriteNIXL(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s by %s, %s; Lat. a block; Prep writes the lists, Post is Submit, Tx the rest\n", r.Op, r.Protocol, present.Things(int64(r.Threads), "thread"))
	if r.Incomplete != "" {
		fmt.Fprintf(&b, "# incomplete: %s\n", r.Incomplete)
	}
	width := 0
	for i, name := range []string{
		"Block Size (B)", "Batch Size", "B/W (GB/Sec)", "Avg Lat. (us)", "Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)", "Avg Tx (us)", "P99 Tx (us)",
	} {
		column := 15
		if i == 0 {
			column = 20
		}
		fmt.Fprintf(&b, "%-*s", column, name)
		width += column
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Repeat("-", width))
	for i := range r.Points {
		p := &r.Points[i]
		fmt.Fprintf(&b, "%-20d%-15d%-15.6f%-15.3f%-15.1f%-15.1f%-15.1f%-15.1f%-15.1f%-15.1f\n",
			p.BlockBytes, p.Blocks, p.GBps, p.BlockMicros, p.PrepMicros, p.PrepP99Micros, p.PostMicros, p.PostP99Micros, p.TxMicros, p.TxP99Micros)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict returns a text about the fastest point.
func (r *Report) verdict() string {
	if len(r.Points) == 0 {
		return "No point was measured."
	}
	best := slices.MaxFunc(r.Points, func(a, b Point) int { return cmp.Compare(a.GBps, b.GBps) })
	right := ""
	if r.Checked {
		right = ", every byte correct"
	}
	return fmt.Sprintf("%s by %s: %s GB/s in batches of %s of %s%s.", map[Op]string{Read: "Reads", Write: "Writes"}[r.Op], r.Protocol, present.Rate(best.GBps),
		present.Things(int64(best.Blocks), "block"), bench.BytesText(best.BlockBytes), right)
}
