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

// Report is the result of a run. GBps fields are medians in units of 1e9 bytes per second unless
// stated otherwise.
type Report struct {
	Format    int       `json:"format"`
	Machine   Facts     `json:"machine"`
	Setup     Setup     `json:"setup"`
	Reference Reference `json:"reference"`
	Points    []Point   `json:"points"`
	// Soft are the points of software NICs. Copy streams move their bytes, so they show the
	// overhead of a stream over NICs and not the rate of a NIC.
	Soft    []Point     `json:"nic_soft,omitempty"`
	Peers   *PeerReport `json:"peers,omitempty"`
	Missing []Missing   `json:"missing"`
	// LeftOut lists places that did not fit the budget. Incomplete is the reason if the run ended
	// early.
	LeftOut    []string `json:"left_out,omitempty"`
	Incomplete string   `json:"incomplete,omitempty"`
}

// Facts describes the machine and the time of a run. The caller sets Command.
type Facts struct {
	Device        string    `json:"device"`
	UUID          string    `json:"uuid,omitempty"`
	Driver        string    `json:"driver"`
	DriverVersion string    `json:"driver_version"`
	Simulated     bool      `json:"simulated"` // the results do not describe hardware
	PCI           string    `json:"pci,omitempty"`
	CPUs          int       `json:"cpus"`
	GoVersion     string    `json:"go_version"`
	Date          time.Time `json:"date"`
	Seconds       float64   `json:"seconds"` // duration of the run
	Command       string    `json:"command,omitempty"`
}

// Setup has the options of the run, including defaults.
type Setup struct {
	Bytes       int64 `json:"bytes"`
	BatchBlocks int   `json:"batch_blocks"`
	// DriverCall is the maximum number of copies in one call of the driver's batched copy.
	DriverCall     int     `json:"driver_batch_copies"`
	PoolBytes      int64   `json:"pool_bytes"`
	ReferenceBytes int64   `json:"reference_bytes"`
	SlotBytes      int64   `json:"slot_bytes"` // length of a slot with HostSlots
	Reps           int     `json:"reps"`       // 0: as many as the budget permits
	BudgetSeconds  float64 `json:"budget_seconds"`
	Form           Form    `json:"form"`
	Seed           uint64  `json:"seed"`
	// Planner describes the profile that automatic choice used. The caller sets it.
	Planner string `json:"planner,omitempty"`
	// Without lists the paths that automatic choice excluded. The caller sets it.
	Without []string `json:"without,omitempty"`
	// NICs describes the NICs of the run. The caller sets it.
	NICs []string `json:"nics,omitempty"`
}

// Reference has the rates of the large copies (C) of all groups. Each point is compared with the
// large copies of its own group only.
type Reference struct {
	ToDevice Rate `json:"h2d"`
	ToHost   Rate `json:"d2h"`
	Both     Rate `json:"both"` // sum of both directions concurrently
}

// Rate summarizes samples by their median and their 5% and 95% quantiles.
type Rate struct {
	GBps    float64 `json:"gbps"`
	Low     float64 `json:"low_gbps"`
	High    float64 `json:"high_gbps"`
	Samples int     `json:"samples"`
}

// Of returns the rate for a direction.
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

// Point is the result of one contender at one cell. With Both, durations of a batch refer to the
// batch to the device.
type Point struct {
	Path     string `json:"path"`
	Baseline bool   `json:"baseline,omitempty"`
	Form     Form   `json:"form"`
	Cell
	// Blocks is the number of blocks of a repetition in each direction. It is less than Count if
	// Count blocks would have taken too long.
	Blocks    int       `json:"blocks"`
	Direction Direction `json:"direction"`
	Layout    Layout    `json:"layout"`
	Bytes     int64     `json:"bytes"` // bytes of a repetition, both directions together
	Reps      int       `json:"reps"`

	GBps     float64 `json:"gbps"`
	LowGBps  float64 `json:"low_gbps"`  // 25% quantile
	HighGBps float64 `json:"high_gbps"` // 75% quantile
	// RoundGBps are the medians of the rounds. The rounds of other contenders with the same index
	// ran shortly before or after.
	RoundGBps []float64 `json:"turn_gbps"`
	// LargeGBps is the median rate of the large copies in the same direction between the rounds.
	// Share is GBps divided by LargeGBps.
	LargeGBps float64 `json:"large_copy_gbps"`
	Share     float64 `json:"share_of_large_copy"`

	// Durations from Submit until the copies are done.
	MeanMicros float64 `json:"mean_us"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`
	// Durations of parts: preparing the lists of the batch (not included above), Submit, and the
	// rest.
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
	// BusyCPUs is the average number of processors that the process used, including the benchmark
	// itself.
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

// misses adds the contender of err if err is an entrantError that wraps ErrNotSupported. It reports
// whether this is the case.
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

// Read reads the JSON form of a report. For other versions it returns ErrMismatch.
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

// BytesText formats a number of bytes with the largest binary unit that needs no fraction: "4 KiB".
func BytesText(n int64) string { return present.Size(n) }
