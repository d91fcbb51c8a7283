package replay

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store"
)

// Report is the result of a replay. Programs read its JSON form: fields may be added, but not
// renamed.
type Report struct {
	Trace    string   `json:"trace"`
	Device   string   `json:"device"`
	Version  string   `json:"version,omitempty"` // version of the program; set by the caller
	Notes    []string `json:"notes,omitempty"`
	Complete bool     `json:"complete"` // all requests, up to Config.Limit, were replayed
	Seconds  float64  `json:"seconds"`

	Machine bench.Facts `json:"machine"` // the caller sets Command

	Requests       int64            `json:"requests"`
	BlockAccesses  int64            `json:"block_accesses"`
	DistinctBlocks int64            `json:"distinct_blocks"`
	PrefixHits     int64            `json:"prefix_hits"` // blocks found by prefix and loaded
	HitRate        float64          `json:"hit_rate"`    // prefix hits divided by block accesses
	HitsByTier     map[string]int64 `json:"hits_by_tier"`
	DumpedBlocks   int64            `json:"dumped_blocks"`
	// blocks not dumped because the store already had them
	SkippedBlocks int64 `json:"skipped_blocks"`

	// VerifiedOnWay and VerifiedByCPU are the numbers of loaded blocks whose checksums were
	// verified by the copy or by the CPU.
	VerifiedOnWay int64 `json:"verified_on_way"`
	VerifiedByCPU int64 `json:"verified_by_cpu"`

	BytesVerified   int64      `json:"bytes_verified"` // bytes compared on the pages after the load
	Mismatches      int64      `json:"mismatches"`     // blocks with wrong bytes
	MismatchedBytes int64      `json:"mismatched_bytes"`
	MismatchSamples []Mismatch `json:"mismatch_samples,omitempty"`

	Corrupt   int64 `json:"corrupt"`    // stored blocks with a wrong checksum
	BadCopies int64 `json:"bad_copies"` // copies repeated because of a wrong checksum
	// leased blocks that failed to load and were computed
	LoadErrors    int64    `json:"load_errors"`
	DumpErrors    int64    `json:"dump_errors"`    // blocks that were not stored
	DurableErrors int64    `json:"durable_errors"` // dumps with blocks that did not become durable
	ErrorSamples  []string `json:"error_samples,omitempty"`
	failures      int      // total number of failures; ErrorSamples has the first ones

	// PathsGivenUp is the number of times that a stream replaced a copy path by another. Notes has
	// the last cause.
	PathsGivenUp int64 `json:"paths_given_up"`

	Paths []PathReport `json:"paths"`
	// from the start until the store has verified the last block
	LoadUS    Latency      `json:"load_us"`
	DumpUS    Latency      `json:"dump_us"`    // from the start until the pages may be reused
	DurableUS Latency      `json:"durable_us"` // from the start until every block is durable
	Tiers     []TierReport `json:"tiers,omitempty"`

	// LagUS is the time from a request's due time to its start, if Config.Speed is set.
	LagUS      Latency           `json:"lag_us,omitzero"`
	Thresholds []ThresholdReport `json:"thresholds,omitempty"`

	Asked Asked `json:"-"` // options, for Print
}

// Asked has the options of a replay, and the sizes of blocks and hash IDs.
type Asked struct {
	Limit, Concurrency int
	Layerwise          bool
	Speed              float64
	Geometry           block.Geometry
	BlockBytes         int64 // content of one block
	IDTokens           int64 // see Summary.IDTokens
}

func asked(c *Config, blockBytes int64) Asked {
	return Asked{
		Limit: c.Limit, Concurrency: c.Concurrency, Layerwise: c.Layerwise, Speed: c.Speed,
		Geometry: c.Geometry, BlockBytes: blockBytes, IDTokens: c.Summary.IDTokens(),
	}
}

// PathReport has statistics of one copy path in one direction.
type PathReport struct {
	Path      string  `json:"path"`
	Direction string  `json:"direction"` // "load" or "dump"
	Bytes     int64   `json:"bytes"`
	Summed    int64   `json:"summed"` // bytes whose checksums were computed by the copy
	GBps      float64 `json:"gbps"`   // bytes divided by the time in which a batch was in flight
	// Predicted is the time predicted by the planner divided by the measured time. Zero: the path
	// was not planned.
	Predicted float64 `json:"predicted_by_actual,omitempty"`
	Reason    string  `json:"reason,omitempty"`
}

// Latency is a pair of quantiles in microseconds.
type Latency struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
}

// TierReport has the contents of a tier at the end of the replay, and its counters since it was
// opened.
type TierReport struct {
	Name          string `json:"name"`
	Blocks        int64  `json:"blocks"`
	Bytes         int64  `json:"bytes"`
	CapacityBytes int64  `json:"capacity_bytes"`
	ReadBytes     int64  `json:"read_bytes"`
	WrittenBytes  int64  `json:"written_bytes"`
	Evictions     int64  `json:"evictions"`
	Corrupt       int64  `json:"corrupt"`
	Errors        int64  `json:"errors"`
	Swept         int64  `json:"swept"`
	// longest time from the deadline of a request to a block server to its end
	OverrunUS int64 `json:"overrun_us,omitempty"`
}

// Mismatch is a loaded block with wrong bytes, which were not detected by the store.
type Mismatch struct {
	Line       int    `json:"line"` // line of the request
	HashID     int64  `json:"hash_id"`
	Key        string `json:"key"`
	Tier       string `json:"tier"`
	Page       uint32 `json:"page"`
	Layer      int    `json:"layer"`
	Part       string `json:"part"` // "k", "v", or "latent"
	Offset     int64  `json:"offset"`
	WrongBytes int64  `json:"wrong_bytes"`
}

// String describes the block and its first wrong byte.
func (m Mismatch) String() string {
	return fmt.Sprintf("line %d: block %d (key %s) from tier %s on page %d: %d wrong bytes, the first in layer %d, %s, at byte %d",
		m.Line, m.HashID, m.Key, m.Tier, m.Page, m.WrongBytes, m.Layer, m.Part, m.Offset)
}

// mostSamples is the maximum length of MismatchSamples and ErrorSamples.
const mostSamples = 20

// tally collects the results of the workers in a Report. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex
	r        Report // guarded by mu, like the fields below
	dumpErr  error
	distinct map[int64]uint64
	load     *hdrhistogram.Histogram
	dump     *hdrhistogram.Histogram
	durable  *hdrhistogram.Histogram
	lag      *hdrhistogram.Histogram
}

func newTally() *tally {
	histogram := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(10*time.Minute/time.Microsecond), 3) }
	return &tally{
		r:        Report{HitsByTier: map[string]int64{}},
		distinct: map[int64]uint64{},
		load:     histogram(), dump: histogram(), durable: histogram(), lag: histogram(),
	}
}

// see counts the hash IDs of a request. In real traces, IDs are dense, so a set of 64-bit masks is
// small.
func (t *tally) see(ids []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.BlockAccesses += int64(len(ids))
	for _, id := range ids {
		word, bit := id>>6, uint64(1)<<(id&63)
		if old := t.distinct[word]; old&bit == 0 {
			t.distinct[word] = old | bit
			t.r.DistinctBlocks++
		}
	}
}

// update calls f with the report while it holds the lock.
func (t *tally) update(f func(r *Report)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.r)
}

// failLoad counts a leased block that failed to load.
func (t *tally) failLoad(err error) {
	t.update(func(r *Report) {
		r.LoadErrors++
		r.sample(err)
	})
}

// failDump counts a dump with blocks that did not become durable.
func (t *tally) failDump(err error) {
	t.update(func(r *Report) {
		r.DurableErrors++
		r.sample(err)
		if t.dumpErr == nil {
			t.dumpErr = err
		}
	})
}

// dumpError returns the error of the first failed dump, or nil.
func (t *tally) dumpError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dumpErr
}

// sample counts a failure. It keeps the error unless there are already mostSamples.
func (r *Report) sample(err error) {
	r.failures++
	if len(r.ErrorSamples) < mostSamples {
		r.ErrorSamples = append(r.ErrorSamples, err.Error())
	}
}

func (t *tally) latency(h *hdrhistogram.Histogram, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A latency beyond the range of the histogram counts as the largest value.
	_ = h.RecordValue(min(max(d.Microseconds(), 1), h.HighestTrackableValue()))
}

// report returns a copy of the current report with the derived values.
func (t *tally) report(elapsed time.Duration) *Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.r
	r.Seconds = elapsed.Seconds()
	r.HitsByTier = maps.Clone(r.HitsByTier)
	r.MismatchSamples = slices.Clone(r.MismatchSamples)
	r.ErrorSamples = slices.Clone(r.ErrorSamples)
	if r.BlockAccesses > 0 {
		r.HitRate = float64(r.PrefixHits) / float64(r.BlockAccesses)
	}
	quantiles := func(h *hdrhistogram.Histogram) Latency {
		return Latency{P50: h.ValueAtQuantile(50), P99: h.ValueAtQuantile(99)}
	}
	r.LoadUS, r.DumpUS, r.DurableUS, r.LagUS = quantiles(t.load), quantiles(t.dump), quantiles(t.durable), quantiles(t.lag)
	return &r
}

// addStore adds the differences of the store's counters between two samples, and the tiers of the
// second sample.
func (r *Report) addStore(before, after *store.Stats) {
	r.Paths = appendPaths([]PathReport{}, "load", before.LoadPaths, after.LoadPaths)
	r.Paths = appendPaths(r.Paths, "dump", before.DumpPaths, after.DumpPaths)
	r.DumpedBlocks = after.Dumped - before.Dumped
	r.SkippedBlocks = after.Skipped - before.Skipped
	r.DumpErrors = after.DumpErrors - before.DumpErrors
	r.Corrupt = after.Mismatches - before.Mismatches
	r.BadCopies = after.BadCopies - before.BadCopies
	r.VerifiedOnWay, r.VerifiedByCPU = after.VerifiedOnWay-before.VerifiedOnWay, after.VerifiedByCPU-before.VerifiedByCPU
	if r.PathsGivenUp = after.PathsGivenUp - before.PathsGivenUp; r.PathsGivenUp > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d times a copy path was abandoned because the device refused a resource, or a NIC failed; the last error: %v", r.PathsGivenUp, after.GivenUp))
	}
	for i := range after.Tiers {
		st := &after.Tiers[i].Tier
		r.Tiers = append(r.Tiers, TierReport{
			Name: after.Tiers[i].Name, Blocks: st.Blocks, Bytes: st.Bytes, CapacityBytes: st.CapacityBytes,
			ReadBytes: st.ReadBytes, WrittenBytes: st.WrittenBytes, Evictions: st.Evictions, Corrupt: st.Corrupt,
			Errors: st.Errors, Swept: st.Swept, OverrunUS: st.Overrun.Microseconds(),
		})
	}
}

func appendPaths(out []PathReport, direction string, before, after []store.PathStats) []PathReport {
	for _, p := range after {
		for _, old := range before {
			if old.Path == p.Path {
				p.Bytes -= old.Bytes
				p.Summed -= old.Summed
				p.Busy -= old.Busy
				p.Predicted -= old.Predicted
			}
		}
		if p.Bytes == 0 {
			continue
		}
		pr := PathReport{Path: p.Path.String(), Direction: direction, Bytes: p.Bytes, Summed: p.Summed, Reason: p.Reason}
		if p.Busy > 0 {
			pr.GBps = float64(p.Bytes) / p.Busy.Seconds() / 1e9
			pr.Predicted = p.Predicted.Seconds() / p.Busy.Seconds()
		}
		out = append(out, pr)
	}
	return out
}
