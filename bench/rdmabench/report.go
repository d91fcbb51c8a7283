package rdmabench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/present"
)

// Format is the version of Report's JSON form.
const Format = 1

// Report is what a NIC did, and how it was asked. Provider says whether it is one of the machine ("ibv") or software ("soft").
type Report struct {
	Format   int    `json:"format"`
	Provider string `json:"provider"`
	NIC      string `json:"nic"`
	Firmware string `json:"firmware"`
	// Reason says why this NIC, and its port. It is for the caller to fill in, as are Device, Simulated and Command.
	Reason    string    `json:"reason,omitempty"`
	Port      int       `json:"port"`
	GIDIndex  int       `json:"gid_index"`
	MTUBytes  int       `json:"mtu_bytes,omitempty"` // zero: the active one
	Local     string    `json:"local_memory"`
	Remote    string    `json:"remote_memory"`
	Device    string    `json:"device,omitempty"` // whose memory the remote one is
	Simulated bool      `json:"simulated"`        // then no figure says anything of hardware
	CPUs      int       `json:"cpus"`
	GoVersion string    `json:"go_version"`
	Date      time.Time `json:"date"`
	Command   string    `json:"command,omitempty"`
	TxDepth   int       `json:"tx_depth"`
	RxDepth   int       `json:"rx_depth"`
	PostList  int       `json:"post_list"` // requests of one doorbell and completion

	Bandwidth []Bandwidth `json:"bandwidth"`
	Latency   []Latency   `json:"latency"`
	// LeftOut is what a budget of BudgetSeconds was too short for; zero: there was none.
	BudgetSeconds float64  `json:"budget_seconds,omitempty"`
	LeftOut       []string `json:"left_out,omitempty"`
	// Incomplete says why the run ended before its end, if it did.
	Incomplete string `json:"incomplete,omitempty"`
}

// Bandwidth is a row of ib_write_bw, ib_read_bw or ib_send_bw. MiBps are 2^20 bytes a second, as perftest's MB/sec are.
type Bandwidth struct {
	Op         Op      `json:"op"`
	Bytes      int64   `json:"bytes"`
	Iterations int     `json:"iterations"`
	PeakMiBps  float64 `json:"peak_mib_per_s"`
	MiBps      float64 `json:"average_mib_per_s"`
	Mpps       float64 `json:"mpps"` // millions of messages a second
}

// Latency is a row of ib_write_lat, ib_read_lat or ib_send_lat, in microseconds.
type Latency struct {
	Op            Op      `json:"op"`
	Bytes         int64   `json:"bytes"`
	Iterations    int     `json:"iterations"`
	MinMicros     float64 `json:"t_min_us"`
	MaxMicros     float64 `json:"t_max_us"`
	TypicalMicros float64 `json:"t_typical_us"` // the median
	MeanMicros    float64 `json:"t_avg_us"`
	StdevMicros   float64 `json:"t_stdev_us"`
	P99Micros     float64 `json:"p99_us"`
	P999Micros    float64 `json:"p999_us"`
}

// WriteText writes the report for people, in perftest's columns.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	r.head(p)
	for _, op := range Ops() {
		r.bandwidths(p, op)
		r.latencies(p, op)
	}
	return p.Write(w)
}

func (r *Report) head(p *present.Page) {
	h := bench.Head{Incomplete: r.Incomplete}
	h.LeftOut(r.LeftOut, r.BudgetSeconds)
	if r.Provider == softProvider {
		h.Notes = append(h.Notes, "The NIC is software (soft): these are no figures of a NIC.")
	}
	if r.Simulated {
		h.Notes = append(h.Notes, "SIMULATED: the remote memory is that of the simulated device.")
	}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	t.Row("provider", r.Provider)
	nic := fmt.Sprintf("%s, firmware %s", present.Name(r.NIC), present.Name(r.Firmware))
	if r.Reason != "" {
		nic += ": " + r.Reason
	}
	t.Row("nic", nic)
	remote := r.Remote
	if r.Device != "" {
		remote += " of " + present.Name(r.Device)
	}
	t.Row("memory", fmt.Sprintf("local: %s; remote: %s", r.Local, remote))
	t.Row("machine", fmt.Sprintf("%d CPUs, %s", r.CPUs, r.GoVersion))
	t.Row("date", r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		t.Row("command", present.Name(r.Command))
	}
	t.Row("setup", fmt.Sprintf("two queue pairs of the NIC, connected to each other; tx depth %d, rx depth %d, %d requests a doorbell and completion", r.TxDepth, r.RxDepth, r.PostList))
	p.Table(t)
}

// verdict says what each operation reached.
func (r *Report) verdict() string {
	var texts []string
	for _, op := range Ops() {
		rate, micros := 0.0, math.Inf(1)
		for i := range r.Bandwidth {
			if v := &r.Bandwidth[i]; v.Op == op {
				rate = max(rate, v.MiBps)
			}
		}
		for i := range r.Latency {
			if v := &r.Latency[i]; v.Op == op {
				micros = min(micros, v.TypicalMicros)
			}
		}
		if rate > 0 {
			texts = append(texts, fmt.Sprintf("%ss of up to %s MB/s, from %s µs on", op, present.Rate(rate), present.Rate(micros)))
		}
	}
	if len(texts) == 0 {
		return "Nothing was measured."
	}
	return "Every byte right: " + strings.Join(texts, "; ") + "."
}

// whatLatency says what is timed.
var whatLatency = map[Op]string{
	Write: "half of a round trip of writes with immediate data", Send: "half of a round trip of sends", Read: "from posting a read to its completion",
}

func (r *Report) bandwidths(p *present.Page, op Op) {
	t := &present.Table{Head: []string{"#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"}, Right: "rrrrr"}
	for i := range r.Bandwidth {
		if v := &r.Bandwidth[i]; v.Op == op {
			t.Row(strconv.FormatInt(v.Bytes, 10), strconv.Itoa(v.Iterations), fmt.Sprintf("%.2f", v.PeakMiBps), fmt.Sprintf("%.2f", v.MiBps), fmt.Sprintf("%.6f", v.Mpps))
		}
	}
	if len(t.Rows) > 0 {
		p.Heading("RDMA %s bandwidth, provider %s", op, r.Provider)
		p.Table(t)
		p.Define("MB", "2^20 bytes, as perftest has it")
	}
}

func (r *Report) latencies(p *present.Page, op Op) {
	t := &present.Table{Head: []string{
		"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]",
	}, Right: "rrrrrrrrr"}
	for i := range r.Latency {
		v := &r.Latency[i]
		if v.Op != op {
			continue
		}
		row := []string{strconv.FormatInt(v.Bytes, 10), strconv.Itoa(v.Iterations)}
		for _, us := range []float64{v.MinMicros, v.MaxMicros, v.TypicalMicros, v.MeanMicros, v.StdevMicros, v.P99Micros, v.P999Micros} {
			row = append(row, fmt.Sprintf("%.2f", us))
		}
		t.Row(row...)
	}
	if len(t.Rows) > 0 {
		p.Heading("RDMA %s latency, provider %s: %s", op, r.Provider, whatLatency[op])
		p.Table(t)
	}
}
