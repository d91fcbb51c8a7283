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

// Report is the result of a run. GBps are 1e9 bytes per second, and medians unless stated
// otherwise.
type Report struct {
	Format    int       `json:"format"`
	Machine   Facts     `json:"machine"`
	Setup     Setup     `json:"setup"`
	Reference Reference `json:"reference"`
	Points    []Point   `json:"points"`
	// Soft are the points of NICs in software, whose bytes copy streams move. They show the cost of
	// a stream over NICs, not the rate of a NIC.
	Soft    []Point     `json:"nic_soft,omitempty"`
	Peers   *PeerReport `json:"peers,omitempty"`
	Missing []Missing   `json:"missing"`
	// LeftOut are places that did not fit the budget. Incomplete is the reason for an early end.
	LeftOut    []string `json:"left_out,omitempty"`
	Incomplete string   `json:"incomplete,omitempty"`
}

// Facts are the machine and the time of a run. The caller sets Command.
type Facts struct {
	Device        string    `json:"device"`
	UUID          string    `json:"uuid,omitempty"`
	Driver        string    `json:"driver"`
	DriverVersion string    `json:"driver_version"`
	Simulated     bool      `json:"simulated"` // the figures do not describe hardware
	PCI           string    `json:"pci,omitempty"`
	CPUs          int       `json:"cpus"`
	GoVersion     string    `json:"go_version"`
	Date          time.Time `json:"date"`
	Seconds       float64   `json:"seconds"` // duration of the run
	Command       string    `json:"command,omitempty"`
}

// Setup is the options of the run, with defaults.
type Setup struct {
	Bytes       int64 `json:"bytes"`
	BatchBlocks int   `json:"batch_blocks"`
	// maximum of copies in one call of the driver's batched copy
	DriverCall     int     `json:"driver_batch_copies"`
	PoolBytes      int64   `json:"pool_bytes"`
	ReferenceBytes int64   `json:"reference_bytes"`
	SlotBytes      int64   `json:"slot_bytes"` // of HostSlots
	Reps           int     `json:"reps"`       // 0: as many as the budget allows
	BudgetSeconds  float64 `json:"budget_seconds"`
	Form           Form    `json:"form"`
	Seed           uint64  `json:"seed"`
	// Planner describes the profile of the stream's own choices. The caller sets it.
	Planner string `json:"planner,omitempty"`
	// Without are the paths that the stream's own choice excluded. The caller sets it.
	Without []string `json:"without,omitempty"`
	// NICs are the NICs of the run and their use. The caller sets it.
	NICs []string `json:"nics,omitempty"`
}

// Reference is one large copy, C, the reference of all points. Each point is compared with the
// large copies of its own group. These are the figures of all groups.
type Reference struct {
	ToDevice Rate `json:"h2d"`
	ToHost   Rate `json:"d2h"`
	Both     Rate `json:"both"` // both directions at once, sum
}

// Rate summarizes many samples: their median, and their 5% and 95% quantiles.
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

// Point is the result of one contender at one cell. With Both, durations of one batch are those of
// the batch to the device.
type Point struct {
	Path     string `json:"path"`
	Baseline bool   `json:"baseline,omitempty"`
	Form     Form   `json:"form"`
	Cell
	// Blocks is the number of blocks of a repetition in each direction. It is less than Count if
	// Count would have taken too long.
	Blocks    int       `json:"blocks"`
	Direction Direction `json:"direction"`
	Layout    Layout    `json:"layout"`
	Bytes     int64     `json:"bytes"` // of a repetition, both directions together
	Reps      int       `json:"reps"`

	GBps     float64 `json:"gbps"`
	LowGBps  float64 `json:"low_gbps"`  // quarter quantile
	HighGBps float64 `json:"high_gbps"` // three-quarter quantile
	// RoundGBps are the medians of the rounds. Rounds of the same number of the other contenders
	// ran shortly before or after.
	RoundGBps []float64 `json:"turn_gbps"`
	// LargeGBps is one large copy in the same direction, the median of those between the rounds.
	// Share is GBps divided by it.
	LargeGBps float64 `json:"large_copy_gbps"`
	Share     float64 `json:"share_of_large_copy"`

	// Durations from Submit until done.
	MeanMicros float64 `json:"mean_us"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`
	// Their parts: writing the lists of the batch (not included above), Submit, and the rest.
	PrepMicros    float64 `json:"prep_us"`
	PrepP99Micros float64 `json:"prep_p99_us"`
	PostMicros    float64 `json:"post_us"`
	PostP50Micros float64 `json:"post_p50_us"`
	PostP99Micros float64 `json:"post_p99_us"`
	TxMicros      float64 `json:"tx_us"`
	TxP99Micros   float64 `json:"tx_p99_us"`

	// Traveled is the path of most batches. PredictedMicros is the time that the stream predicted,
	// or zero.
	Traveled        string  `json:"traveled,omitempty"`
	PredictedMicros float64 `json:"predicted_us,omitempty"`
	Summed          bool    `json:"summed,omitempty"` // the stream computed the requested checksums
	// AllocsPerBlock is the number of heap objects that the process allocated per block.
	AllocsPerBlock float64 `json:"allocs_per_block"`
	// BusyCPUs is the number of processors that the process used, including the benchmark itself.
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

// miss adds a contender that could not be measured.
func (r *Report) miss(c Contender, why error) {
	r.Missing = append(r.Missing, Missing{Path: c.Name(), Reason: why.Error()})
}

// misses adds the contender of an entrantError that wraps ErrNotSupported, and reports whether err
// is one.
func (r *Report) misses(err error) bool {
	var failed *entrantError
	if !errors.As(err, &failed) || !errors.Is(err, errdefs.ErrNotSupported) {
		return false
	}
	r.miss(failed.who, failed.err)
	return true
}

// add adds points to Points or Soft.
func (r *Report) add(points []Point) {
	for i := range points {
		if c, err := ParseContender(points[i].Path); err == nil && c.Soft() {
			r.Soft = append(r.Soft, points[i])
		} else {
			r.Points = append(r.Points, points[i])
		}
	}
}

// Read reads the JSON form of a report. Another version is ErrMismatch.
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

// BytesText returns a number of bytes with the largest binary unit that leaves no fraction: "4
// KiB".
func BytesText(n int64) string { return present.Size(n) }
