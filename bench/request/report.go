package request

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
)

// Format is the version of Report's JSON form, and Kind what tells it from those of other benchmarks.
const (
	Format = 1
	Kind   = "kvlane bench store"
)

// Report is what a run measured, and on what. GBps are 1e9 bytes a second.
type Report struct {
	Kind    string `json:"kind"`
	Format  int    `json:"format"`
	Version string `json:"version,omitempty"` // of the program; for the caller to fill in

	Machine bench.Facts `json:"machine"`
	Setup   Setup       `json:"setup"`
	// Reference is one large copy: those beside all points.
	Reference bench.Reference `json:"reference"`
	Points    []Point         `json:"points"`
	Beside    *Beside         `json:"beside,omitempty"`
	LeftOut   []string        `json:"left_out,omitempty"` // what was not measured, and why
	Notes     []string        `json:"notes,omitempty"`    // of the engines: fallbacks, and why
	// Incomplete says why the run ended before its end, if it did.
	Incomplete string `json:"incomplete,omitempty"`
}

// Setup is what the run was asked for, with the defaults filled in.
type Setup struct {
	Geometries    []string `json:"geometries"`
	Blocks        []int    `json:"blocks"`
	Requests      []int    `json:"requests"`
	Bytes         int64    `json:"bytes"` // the most of the requests of a time
	LargeBytes    int64    `json:"large_bytes"`
	BudgetSeconds float64  `json:"budget_seconds"`
	Seed          uint64   `json:"seed"`
	Still         bool     `json:"still,omitempty"` // nothing was moved, and so nothing verified
	// Goals of the policies that loads and dumps had.
	LoadPolicy string `json:"load_policy"`
	DumpPolicy string `json:"dump_policy"`
	// Engine are the options that are not an engine's defaults. For the caller to fill in.
	Engine string `json:"engine,omitempty"`
}

// Place is what a point measures.
type Place struct {
	Geometry  string `json:"geometry"`
	Work      Work   `json:"work"`
	Layerwise bool   `json:"layerwise"`
	Hits      Hits   `json:"hits,omitempty"` // where loads found their blocks
	Blocks    int    `json:"blocks"`         // of one request
	Requests  int    `json:"requests"`       // at a time; of both, as many loads as dumps
}

// Point is what was measured at a place. Times are of single requests, from the call of LeasePrefix until all is verified in pages,
// or from the call of Dump until the pages may be reused.
type Point struct {
	Place
	BlockBytes int64 `json:"block_bytes"`
	PieceBytes int64 `json:"piece_bytes"`
	Bytes      int64 `json:"bytes"` // of all requests at a time
	Reps       int   `json:"reps"`

	// All requests' bytes by the time until the last had ended: the median, and the quarter and three-quarter quantiles.
	GBps     float64 `json:"gbps"`
	LowGBps  float64 `json:"low_gbps"`
	HighGBps float64 `json:"high_gbps"`
	// LargeGBps is the median of the large copies beside the point, in the same direction, and PercentOfC GBps over it.
	LargeGBps  float64 `json:"large_copy_gbps"`
	PercentOfC float64 `json:"percent_of_c"`
	// RawGBps and RawMicros are what a bare stream of the engine does with the same pages in one batch without checksums: its rate
	// and its median time. Of both: the loads' pages.
	RawGBps   float64 `json:"raw_gbps"`
	RawMicros float64 `json:"raw_us"`

	P50Micros float64 `json:"p50_us"` // of both: of the loads
	P99Micros float64 `json:"p99_us"`
	// SlowestOverFair is the time of the slowest request of those that were made at a time, the 0.99-quantile over repetitions, by that
	// of all their bytes at LargeGBps, which is when all would end that share a way as fast as C alike. Of several at a time.
	SlowestOverFair float64 `json:"slowest_over_fair,omitempty"`
	// LoadsOverAlone is P50Micros of the loads of both by that of as many loads without dumps, where these were measured too.
	LoadsOverAlone float64 `json:"loads_over_alone,omitempty"`
	// Of the dumps of both.
	DumpP50Micros float64 `json:"dump_p50_us,omitempty"`
	DumpP99Micros float64 `json:"dump_p99_us,omitempty"`
	// Of dumps: until the blocks are durable, which without a file tier is until lookups find them.
	DurableP50Micros float64 `json:"durable_p50_us,omitempty"`
	DurableP99Micros float64 `json:"durable_p99_us,omitempty"`
	// LeasedMicros and BegunMicros are, of loads, the median times until LeasePrefix and then Load had returned. Load begins to copy itself
	// where the stream is idle and one batch is all.
	LeasedMicros float64 `json:"leased_us,omitempty"`
	BegunMicros  float64 `json:"begun_us,omitempty"`
	// LayersMicros says when each layer (or group of layers, where a page holds several) had arrived, median.
	LayersMicros []float64 `json:"layers_us,omitempty"`

	// What the whole process used meanwhile, by the blocks that were loaded and dumped.
	CPUMicrosPerBlock float64 `json:"cpu_us_per_block"`
	AllocsPerBlock    float64 `json:"allocs_per_block"`
	// Path is the one that most of the bytes took.
	Path string `json:"path,omitempty"`
}

// Beside is what requests cost a product that ran beside them.
type Beside struct {
	What   string `json:"what"`
	Pairs  int    `json:"pairs"`
	Losses []Loss `json:"losses"`
}

// Loss is the share of the product's rate that is lost, the mean of the pairs of windows, with its 95% interval.
type Loss struct {
	Place
	GBps         float64 `json:"gbps"`
	AloneTFLOPS  float64 `json:"alone_tflops"`
	BesideTFLOPS float64 `json:"beside_tflops"`
	Loss         float64 `json:"loss"`
	Low          float64 `json:"loss_low"`
	High         float64 `json:"loss_high"`
}

// Read reads the JSON form of a report. One of another version, or of another benchmark, is ErrMismatch.
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

// String names the place.
func (p Place) String() string {
	from := ""
	if p.Hits != "" {
		from = ", hits in " + string(p.Hits)
	}
	return fmt.Sprintf("%s, %d x %d blocks, %s %s%s", p.Geometry, p.Requests, p.Blocks, p.Work, p.form(), from)
}
