package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Print writes the report as a table for people.
func (r *Report) Print(w io.Writer) error {
	t := &table{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	for _, n := range r.Notes {
		t.row("note", n)
	}
	t.row("trace", r.Trace)
	t.row("device", r.Device)
	state := ""
	if !r.Complete {
		state = " (stopped before the end)"
	}
	t.row("requests", fmt.Sprintf("%s in %.1f s, %.0f/s%s", count(r.Requests), r.Seconds, rate(r.Requests, r.Seconds), state))
	t.row("block accesses", count(r.BlockAccesses))
	t.row("distinct blocks", count(r.DistinctBlocks))
	t.row("prefix hits", fmt.Sprintf("%s (%.1f%%)", count(r.PrefixHits), 100*r.HitRate))
	for _, tier := range slices.Sorted(maps.Keys(r.HitsByTier)) {
		n := r.HitsByTier[tier]
		t.row("  from "+tier, fmt.Sprintf("%s (%.1f%%)", count(n), 100*rate(n, float64(r.BlockAccesses))))
	}
	t.row("blocks dumped", fmt.Sprintf("%s, and %s the store had already", count(r.DumpedBlocks), count(r.SkippedBlocks)))
	t.row("checksums", fmt.Sprintf("%s loaded blocks verified on their way, %s by the CPU", count(r.VerifiedOnWay), count(r.VerifiedByCPU)))
	t.row("verified", Size(r.BytesVerified))
	t.row("mismatches", count(r.Mismatches))
	if r.Corrupt > 0 {
		t.row("corrupt", count(r.Corrupt)+" stored blocks failed their check, and were misses")
	}
	if r.BadCopies > 0 {
		t.row("bad copies", count(r.BadCopies)+" copies to pages failed their check, and were made again")
	}
	if r.LoadErrors+r.DumpErrors+r.DurableErrors > 0 {
		t.row("failures", fmt.Sprintf("%d blocks not loaded (computed instead), %d not stored, %d dumps not durable",
			r.LoadErrors, r.DumpErrors, r.DurableErrors))
	}
	t.row("load", r.LoadUS.String())
	t.row("dump", r.DumpUS.String())
	t.row("durable", r.DurableUS.String())
	r.printPaths(t)
	r.printTiers(t)
	for _, m := range r.MismatchSamples {
		t.row("WRONG BYTES", m.String())
	}
	for _, e := range r.ErrorSamples {
		t.row("failure", e)
	}
	return t.flush()
}

func (r *Report) printPaths(t *table) {
	t.row()
	t.row("path", "direction", "bytes", "summed", "GB/s", "expected", "chosen because")
	for _, p := range r.Paths {
		expected := "-"
		if p.Predicted > 0 {
			expected = fmt.Sprintf("%.2f", p.GBps/p.Predicted)
		}
		t.row(p.Path, p.Direction, Size(p.Bytes), fmt.Sprintf("%.0f%%", 100*rate(p.Summed, float64(p.Bytes))), fmt.Sprintf("%.2f", p.GBps), expected, p.Reason)
	}
}

func (r *Report) printTiers(t *table) {
	if len(r.Tiers) == 0 {
		return
	}
	t.row()
	t.row("tier", "blocks", "bytes", "of", "read", "written", "evictions", "corrupt", "errors", "swept")
	for _, s := range r.Tiers {
		of := "unbounded"
		if s.CapacityBytes > 0 {
			of = Size(s.CapacityBytes)
		}
		t.row(s.Name, count(s.Blocks), Size(s.Bytes), of, Size(s.ReadBytes), Size(s.WrittenBytes), count(s.Evictions),
			count(s.Corrupt), count(s.Errors), count(s.Swept))
	}
}

// String gives both quantiles.
func (l Latency) String() string {
	return fmt.Sprintf("p50 %s us, p99 %s us", count(l.P50), count(l.P99))
}

// table writes rows of cells and keeps the first error.
type table struct {
	w   *tabwriter.Writer
	err error
}

func (t *table) row(cells ...string) {
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
	}
}

func (t *table) flush() error {
	if t.err == nil {
		t.err = t.w.Flush()
	}
	if t.err != nil {
		return fmt.Errorf("print report: %w", t.err)
	}
	return nil
}

// rate returns n by d, and zero by zero.
func rate(n int64, d float64) float64 {
	if d == 0 {
		return 0
	}
	return float64(n) / d
}

// count writes n with commas between thousands.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Size writes n bytes with a binary unit and three digits.
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	digits := 2
	if v >= 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %ciB", digits, v, units[u])
}
