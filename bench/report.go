package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// Format is the version of Report's JSON form.
const Format = 3

// Report is what a run measured, and on what. GBps are 1e9 bytes a second, medians where nothing else is said.
type Report struct {
	Format    int       `json:"format"`
	Machine   Facts     `json:"machine"`
	Setup     Setup     `json:"setup"`
	Reference Reference `json:"reference"`
	Points    []Point   `json:"points"`
	// Soft are the points of NICs in software, whose bytes copy streams move. They say what a stream over NICs costs, and
	// nothing of a NIC.
	Soft []Point `json:"nic_soft,omitempty"`
	// Forms compares lists, page lists and page lists with checksums, of the stream's own choice.
	Forms   []Point     `json:"forms,omitempty"`
	Peers   *PeerReport `json:"peers,omitempty"`
	Missing []Missing   `json:"missing"`
	// LeftOut are places that the budget was too short for. Incomplete says why the run ended before its end, if it did.
	LeftOut    []string `json:"left_out,omitempty"`
	Incomplete string   `json:"incomplete,omitempty"`
}

// Facts says where and when the figures were made. Command is for the caller to fill in.
type Facts struct {
	Device        string    `json:"device"`
	UUID          string    `json:"uuid,omitempty"`
	Driver        string    `json:"driver"`
	DriverVersion string    `json:"driver_version"`
	Simulated     bool      `json:"simulated"` // then no figure says anything of hardware
	PCI           string    `json:"pci,omitempty"`
	CPUs          int       `json:"cpus"`
	GoVersion     string    `json:"go_version"`
	Date          time.Time `json:"date"`
	Seconds       float64   `json:"seconds"` // how long the run took
	Command       string    `json:"command,omitempty"`
}

// Setup is what the run was asked for, with the defaults filled in.
type Setup struct {
	Bytes          int64   `json:"bytes"`
	BatchBlocks    int     `json:"batch_blocks"`
	DriverCall     int     `json:"driver_batch_copies"` // the most copies of one call of the driver's batched copy
	PoolBytes      int64   `json:"pool_bytes"`
	ReferenceBytes int64   `json:"reference_bytes"`
	SlotBytes      int64   `json:"slot_bytes"` // of the placement HostSlots
	Reps           int     `json:"reps"`       // 0: as many as the budget allows
	BudgetSeconds  float64 `json:"budget_seconds"`
	Form           Form    `json:"form"`
	Seed           uint64  `json:"seed"`
	// Planner says by what the stream's own choices were made. It is for the caller to fill in.
	Planner string `json:"planner,omitempty"`
	// Without is the paths that the stream's own choice was denied. It is for the caller to fill in.
	Without []string `json:"without,omitempty"`
	// NICs are those that were there, and how they were used. It is for the caller to fill in.
	NICs []string `json:"nics,omitempty"`
}

// Reference is one large copy, C: what everything else is compared with. There are some beside every group of points, and each
// point is compared with those beside it; here they are all together.
type Reference struct {
	ToDevice Rate `json:"h2d"`
	ToHost   Rate `json:"d2h"`
	Both     Rate `json:"both"` // both ways at once, in sum
}

// Rate is the rate of many samples: their median, and what 5% of them are below and above.
type Rate struct {
	GBps    float64 `json:"gbps"`
	Low     float64 `json:"low_gbps"`
	High    float64 `json:"high_gbps"`
	Samples int     `json:"samples"`
}

// Of returns C of a direction.
func (r *Reference) Of(d Direction) Rate {
	switch d {
	case ToDevice:
		return r.ToDevice
	case ToHost:
		return r.ToHost
	case Both:
		return r.Both
	}
	return Rate{}
}

// Point is what one contender reached on one cell. Of Both, the durations that have to do with one batch are those of the
// batch to the device.
type Point struct {
	Path     string `json:"path"`
	Baseline bool   `json:"baseline,omitempty"`
	Form     Form   `json:"form"`
	Cell
	// Blocks is how many blocks a repetition moved each way: fewer than Count where Count would have taken too long.
	Blocks    int       `json:"blocks"`
	Direction Direction `json:"direction"`
	Layout    Layout    `json:"layout"`
	Bytes     int64     `json:"bytes"` // of a repetition, both ways together
	Reps      int       `json:"reps"`

	GBps     float64 `json:"gbps"`
	LowGBps  float64 `json:"low_gbps"`  // quarter quantile
	HighGBps float64 `json:"high_gbps"` // three-quarter quantile
	// TurnGBps are the medians of the contender's turns. It took them with the other contenders of the same cell, direction and
	// placement, whose turns of the same number were soon before or after.
	TurnGBps []float64 `json:"turn_gbps"`
	// LargeGBps is one large copy in the same direction, the median of those between the turns, and Share is GBps over it.
	LargeGBps float64 `json:"large_copy_gbps"`
	Share     float64 `json:"share_of_large_copy"`

	// From Submit until done.
	MeanMicros float64 `json:"mean_us"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`
	// Its parts: writing the batch's lists (not counted above), Submit, and from there until done.
	PrepMicros    float64 `json:"prep_us"`
	PrepP99Micros float64 `json:"prep_p99_us"`
	PostMicros    float64 `json:"post_us"`
	PostP50Micros float64 `json:"post_p50_us"`
	PostP99Micros float64 `json:"post_p99_us"`
	TxMicros      float64 `json:"tx_us"`
	TxP99Micros   float64 `json:"tx_p99_us"`

	// Traveled is the path that most of the batches took, and PredictedMicros what the stream expected, or zero.
	Traveled        string  `json:"traveled,omitempty"`
	PredictedMicros float64 `json:"predicted_us,omitempty"`
	Summed          bool    `json:"summed,omitempty"` // the stream took the checksums that it was asked for
	// AllocsPerBlock is how many heap objects the process made a block, whoever made them.
	AllocsPerBlock float64 `json:"allocs_per_block"`
	// BusyCPUs is how many processors the process kept busy meanwhile, the benchmark's own work included.
	BusyCPUs float64 `json:"cpus_busy"`
}

// Missing is a contender that could not be measured.
type Missing struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

func newReport(i device.Info, o *Options) *Report {
	return &Report{
		Format:  Format,
		Machine: NewFacts(i, o.Began),
		Setup: Setup{
			Bytes: o.Bytes, BatchBlocks: o.BatchBlocks, DriverCall: DriverBatchCopies, SlotBytes: o.SlotBytes, PoolBytes: o.PoolBytes, ReferenceBytes: o.ReferenceBytes, Reps: o.Reps,
			BudgetSeconds: o.Budget.Seconds(), Form: o.Form, Seed: o.Seed,
		},
		Points: []Point{}, Missing: []Missing{},
	}
}

func (r *Report) missing(c Contender) bool {
	return slices.ContainsFunc(r.Missing, func(m Missing) bool { return m.Path == c.Name() })
}

// miss notes that a contender could not be measured.
func (r *Report) miss(c Contender, why error) {
	r.Missing = append(r.Missing, Missing{Path: c.Name(), Reason: why.Error()})
}

// misses notes the contender that err says is not supported, if that is what it says.
func (r *Report) misses(err error) bool {
	var failed *entrantError
	if !errors.As(err, &failed) || !errors.Is(err, errdefs.ErrNotSupported) {
		return false
	}
	r.miss(failed.who, failed.err)
	return true
}

// add adds points to those of their kind.
func (r *Report) add(points []Point) {
	for i := range points {
		if c, err := ParseContender(points[i].Path); err == nil && c.Soft() {
			r.Soft = append(r.Soft, points[i])
		} else {
			r.Points = append(r.Points, points[i])
		}
	}
}

// Read reads the JSON form of a report. One of another version is ErrMismatch.
func Read(from io.Reader) (*Report, error) {
	r := new(Report)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("read report: it has format %d, not %d: %w", r.Format, Format, errdefs.ErrMismatch)
	}
	return r, nil
}

// BytesText writes a number of bytes with the largest binary unit that leaves no fraction: "4 KiB".
func BytesText(n int64) string { return present.Size(n) }
