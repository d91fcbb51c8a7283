package rdmabench

import (
	"fmt"
	"io"
	"strings"
	"time"
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
	var b strings.Builder
	r.head(&b)
	for _, op := range Ops() {
		r.bandwidths(&b, op)
		r.latencies(&b, op)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) head(b *strings.Builder) {
	if r.Incomplete != "" {
		fmt.Fprintf(b, "INCOMPLETE: %s. What follows was measured before.\n", r.Incomplete)
	}
	if r.Provider == softProvider {
		b.WriteString("The NIC is software (soft): these are no figures of a NIC.\n")
	}
	if r.Simulated {
		b.WriteString("SIMULATED: the figures describe the simulated device, not hardware.\n")
	}
	fmt.Fprintf(b, "provider   %s\n", r.Provider)
	fmt.Fprintf(b, "nic        %s, firmware %s", r.NIC, r.Firmware)
	if r.Reason != "" {
		fmt.Fprintf(b, ": %s", r.Reason)
	}
	fmt.Fprintf(b, "\nmemory     local: %s; remote: %s", r.Local, r.Remote)
	if r.Device != "" {
		fmt.Fprintf(b, " of %s", r.Device)
	}
	fmt.Fprintf(b, "\nmachine    %d CPUs, %s\n", r.CPUs, r.GoVersion)
	fmt.Fprintf(b, "date       %s\n", r.Date.Format("2006-01-02 15:04 MST"))
	if r.Command != "" {
		fmt.Fprintf(b, "command    %s\n", r.Command)
	}
	fmt.Fprintf(b, "setup      two queue pairs of the NIC, connected to each other; tx depth %d, rx depth %d, %d requests a doorbell and completion; MB = 2^20 bytes\n",
		r.TxDepth, r.RxDepth, r.PostList)
}

// whatLatency says what is timed.
var whatLatency = map[Op]string{
	Write: "half of a round trip of writes with immediate data", Send: "half of a round trip of sends", Read: "from posting a read to its completion",
}

func (r *Report) bandwidths(b *strings.Builder, op Op) {
	some := false
	for i := range r.Bandwidth {
		v := &r.Bandwidth[i]
		if v.Op != op {
			continue
		}
		if !some {
			some = true
			fmt.Fprintf(b, "\nRDMA %s bandwidth, provider %s\n", op, r.Provider)
			fmt.Fprintf(b, " %-10s %-14s %-18s %-20s %s\n", "#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]")
		}
		fmt.Fprintf(b, " %-10d %-14d %-18.2f %-20.2f %.6f\n", v.Bytes, v.Iterations, v.PeakMiBps, v.MiBps, v.Mpps)
	}
}

func (r *Report) latencies(b *strings.Builder, op Op) {
	some := false
	for i := range r.Latency {
		v := &r.Latency[i]
		if v.Op != op {
			continue
		}
		if !some {
			some = true
			fmt.Fprintf(b, "\nRDMA %s latency, provider %s: %s\n", op, r.Provider, whatLatency[op])
			fmt.Fprintf(b, " %-10s %-14s %-14s %-14s %-17s %-14s %-15s %-22s %s\n", "#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]",
				"t_avg[usec]", "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]")
		}
		fmt.Fprintf(b, " %-10d %-14d %-14.2f %-14.2f %-17.2f %-14.2f %-15.2f %-22.2f %.2f\n", v.Bytes, v.Iterations, v.MinMicros, v.MaxMicros, v.TypicalMicros,
			v.MeanMicros, v.StdevMicros, v.P99Micros, v.P999Micros)
	}
}
