package request

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
)

// Format is the version of Report's JSON form. Kind distinguishes it from reports of other
// benchmarks.
const (
	Format = 1
	Kind   = "kvlane bench store"
)

// Report is the result of a run. GBps fields are in units of 1e9 bytes per second.
type Report struct {
	Kind    string `json:"kind"`
	Format  int    `json:"format"`
	Version string `json:"version,omitempty"` // version of the program; set by the caller

	Machine bench.Facts `json:"machine"`
	Setup   Setup       `json:"setup"`
	// Reference has the rates of the large copies of all groups.
	Reference   bench.Reference `json:"reference"`
	Points      []Point         `json:"points"`
	ProductCost *ProductCost    `json:"beside,omitempty"`
	// LeftOut lists places that were not measured, with the reason.
	LeftOut []string `json:"left_out,omitempty"`
	Notes   []string `json:"notes,omitempty"` // fallbacks of the engines with the reasons
	// Incomplete is the reason if the run ended early.
	Incomplete string `json:"incomplete,omitempty"`
}

// Setup has the options of the run, including defaults.
type Setup struct {
	Geometries    []string `json:"geometries"`
	Blocks        []int    `json:"blocks"`
	Requests      []int    `json:"requests"`
	Bytes         int64    `json:"bytes"` // maximum total length of concurrent requests
	LargeBytes    int64    `json:"large_bytes"`
	BudgetSeconds float64  `json:"budget_seconds"`
	Seed          uint64   `json:"seed"`
	Still         bool     `json:"still,omitempty"` // nothing was copied or verified
	// LoadPolicy and DumpPolicy are the planner's goals for loads and dumps.
	LoadPolicy string `json:"load_policy"`
	DumpPolicy string `json:"dump_policy"`
	// Engine lists the options that differ from the engine's defaults. The caller sets it.
	Engine string `json:"engine,omitempty"`
}

// Place identifies a point by its parameters.
type Place struct {
	Geometry  string `json:"geometry"`
	Work      Work   `json:"work"`
	Layerwise bool   `json:"layerwise"`
	Hits      Hits   `json:"hits,omitempty"` // location of the blocks to load
	// method of loads from files, if the engine has direct storage
	By     By  `json:"by,omitempty"`
	Blocks int `json:"blocks"` // blocks of one request
	// concurrent requests; with Both, this many loads and this many dumps
	Requests int `json:"requests"`
}

// Point is the result at a place. Times are of single requests: from the call of LeasePrefix until
// all bytes are verified in the pages, or from the call of Dump until the pages may be reused.
type Point struct {
	Place
	BlockBytes int64 `json:"block_bytes"`
	PieceBytes int64 `json:"piece_bytes"`
	Bytes      int64 `json:"bytes"` // total length of concurrent requests
	Reps       int   `json:"reps"`

	// GBps is Bytes divided by the time until the last request ended (median). LowGBps and HighGBps
	// are the 25% and 75% quantiles.
	GBps     float64 `json:"gbps"`
	LowGBps  float64 `json:"low_gbps"`
	HighGBps float64 `json:"high_gbps"`
	// LargeGBps is the median rate of the group's large copies in the same direction. PercentOfC is
	// GBps relative to LargeGBps.
	LargeGBps  float64 `json:"large_copy_gbps"`
	PercentOfC float64 `json:"percent_of_c"`
	// RawGBps and RawMicros are the rate and the median time of a stream that copies the same pages
	// in one batch, without a store and checksums. With Both, they refer to the pages of the loads.
	RawGBps   float64 `json:"raw_gbps"`
	RawMicros float64 `json:"raw_us"`

	P50Micros float64 `json:"p50_us"` // of the loads, if Work is Both
	P99Micros float64 `json:"p99_us"`
	// SlowestOverFair is the 0.99 quantile of the time of the slowest request, divided by the time
	// for all bytes at LargeGBps. The value is 1 if all requests share a link of rate C and end at
	// the same time.
	SlowestOverFair float64 `json:"slowest_over_fair,omitempty"`
	// LoadsOverAlone is P50Micros of loads with Both, divided by P50Micros of the same number of
	// loads without dumps. It is set if both were measured.
	LoadsOverAlone float64 `json:"loads_over_alone,omitempty"`
	// DumpP50Micros and DumpP99Micros are set for the dumps of Both.
	DumpP50Micros float64 `json:"dump_p50_us,omitempty"`
	DumpP99Micros float64 `json:"dump_p99_us,omitempty"`
	// Durations until the blocks of dumps are durable. Without a file tier, until lookups find
	// them.
	DurableP50Micros float64 `json:"durable_p50_us,omitempty"`
	DurableP99Micros float64 `json:"durable_p99_us,omitempty"`
	// LeasedMicros and BegunMicros are the median times until LeasePrefix and Load returned. They
	// are set for loads.
	LeasedMicros float64 `json:"leased_us,omitempty"`
	BegunMicros  float64 `json:"begun_us,omitempty"`
	// LayersMicros are the median times until each layer, or group of layers in a page, was loaded.
	LayersMicros []float64 `json:"layers_us,omitempty"`

	// Usage of the whole process per loaded or dumped block.
	CPUMicrosPerBlock float64 `json:"cpu_us_per_block"`
	AllocsPerBlock    float64 `json:"allocs_per_block"`
	// Path is the path of most bytes.
	Path string `json:"path,omitempty"`
}

// ProductCost is the slowdown of a product by concurrent requests.
type ProductCost struct {
	What   string `json:"what"`
	Pairs  int    `json:"pairs"`
	Losses []Loss `json:"losses"`
}

// Loss is the fraction of the product's rate that is lost: the mean of the pairs of windows with
// its 95% confidence interval.
type Loss struct {
	Place
	GBps         float64 `json:"gbps"`
	AloneTFLOPS  float64 `json:"alone_tflops"`
	BesideTFLOPS float64 `json:"beside_tflops"`
	Loss         float64 `json:"loss"`
	Low          float64 `json:"loss_low"`
	High         float64 `json:"loss_high"`
}

// Read reads the JSON form of a report. For other versions and other benchmarks it returns
// ErrMismatch.
func Read(from io.Reader) (*Report, error) {
	r := new(Report)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if r.Kind != Kind || r.Format != Format {
		return nil, fmt.Errorf("read report: it is of %q, format %d, not of %q, format %d: %w", r.Kind, r.Format, Kind, Format, errdefs.ErrMismatch)
	}
	return r, nil
}

// String returns the name of the place.
func (p Place) String() string {
	from := ""
	if p.Hits != "" {
		from = ", hits in " + p.hits()
	}
	return fmt.Sprintf("%s, %d x %d blocks, %s %s%s", p.Geometry, p.Requests, p.Blocks, p.Work, p.form(), from)
}
