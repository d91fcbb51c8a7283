package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/kvlane/kvlane/internal/present"
)

// shownSamples is the maximum number of failures that Print shows.
const shownSamples = 5

// Print writes the report as text: a verdict, the options, hits, latencies, paths, tiers and
// checks. It returns the error of w.
func (r *Report) Print(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	r.verdict(p)
	for _, n := range r.Notes {
		p.Check(present.Warn, "%s", n)
	}
	p.Gap()
	p.Table(r.asked())
	p.Gap()
	p.Table(r.hits())
	p.Gap()
	r.latencies(p)
	r.paths(p)
	r.tiers(p)
	p.Heading("Checks")
	r.checks(p)
	return p.Write(w)
}

// verdict adds a sentence with the result.
func (r *Report) verdict(p *present.Page) {
	mark, bytes := present.Good, "every byte correct"
	switch {
	case r.Mismatches > 0:
		mark, bytes = present.Bad, "WRONG BYTES in "+present.Things(r.Mismatches, "block")
	case r.BytesVerified == 0:
		bytes = "no byte to verify"
	}
	if mark == present.Good && (r.Corrupt+r.BadCopies+r.LoadErrors+r.PathsGivenUp > 0 || len(r.Notes) > 0) {
		mark = present.Warn
	}
	for _, c := range []struct {
		is   bool
		text string
	}{
		{slices.ContainsFunc(r.Thresholds, func(t ThresholdReport) bool { return !t.Met }), "a threshold missed"},
		{r.DumpErrors+r.DurableErrors > 0, "not all blocks stored"},
		{!r.Complete, "stopped early"},
	} {
		if c.is {
			mark, bytes = present.Bad, bytes+", "+c.text
		}
	}
	p.Verdict(mark, "%s in %s, %s a second: %s of their blocks came from the store, %s.", present.Things(r.Requests, "request"),
		present.Micros(r.Seconds*1e6), present.Rate(rate(r.Requests, r.Seconds)), present.Percent(r.HitRate), bytes)
}

// asked returns the table of the replay's input and options.
func (r *Report) asked() *present.Table {
	t := &present.Table{Prose: true}
	t.Row("trace", r.Trace)
	a := &r.Asked
	how := present.Things(int64(a.Concurrency), "request") + " at a time"
	if a.Speed > 0 {
		how += fmt.Sprintf(", at %g times the speed of the trace", a.Speed)
	} else {
		how += ", as fast as possible"
	}
	if a.Limit > 0 {
		how = fmt.Sprintf("the first %s, %s", present.Things(int64(a.Limit), "request"), how)
	}
	if a.Layerwise {
		how += ", layer by layer"
	}
	t.Row("asked", how)
	t.Row("device", r.Device)
	g := &a.Geometry
	shape := fmt.Sprintf("%s of %d", present.Things(int64(g.KVHeads), "KV head"), g.HeadSize)
	if g.MLA {
		shape = fmt.Sprintf("latents of %d", g.HeadSize)
	}
	if g.TPSize > 1 {
		shape += fmt.Sprintf(", rank %d of %d", g.TPRank, g.TPSize)
	}
	t.Row("geometry", fmt.Sprintf("%s: %s, %s, %s", g.Model, present.Things(int64(g.Layers), "layer"), g.DType, shape))
	t.Row("block", fmt.Sprintf("%s: %s", present.Bytes(a.BlockBytes), present.Things(int64(g.BlockTokens), "token")))
	t.Row("volume", r.volume())
	return t
}

// volume returns a text with the bytes of all requested blocks. If hash IDs and blocks have different
// numbers of tokens, it also has the bytes that the trace would have with its own numbers.
func (r *Report) volume() string {
	a := &r.Asked
	here := fmt.Sprintf("%s of requested blocks", present.Bytes(r.BlockAccesses*a.BlockBytes))
	tokens := int64(a.Geometry.BlockTokens)
	switch {
	case a.IDTokens == 0 || tokens == 0:
		return here + ". A hash id of the trace has no fixed number of tokens."
	case a.IDTokens == tokens:
		return here + ". A hash id of the trace has as many tokens as a block."
	}
	full := func(n int64) string { return present.Bytes(int64(float64(n) * float64(a.IDTokens) / float64(tokens))) }
	times := fmt.Sprintf("%.4g times", float64(tokens)/float64(a.IDTokens))
	if a.IDTokens > tokens {
		times = fmt.Sprintf("1/%.4g of", float64(a.IDTokens)/float64(tokens))
	}
	return fmt.Sprintf("%s. That is %s the volume of the trace: each of its hash ids is %d tokens, here one block. In full: %s, %s per id.",
		here, times, a.IDTokens, full(r.BlockAccesses*a.BlockBytes), full(a.BlockBytes))
}

// hits returns a table of the requested blocks: hits by tier, and misses.
func (r *Report) hits() *present.Table {
	t := &present.Table{Prose: true, Right: " rr"}
	share := func(name string, n int64, more string) {
		t.Row(name, present.Count(n), present.Percent(rate(n, float64(r.BlockAccesses))), more)
	}
	t.Row("blocks", present.Count(r.BlockAccesses), "", fmt.Sprintf("requested, %s of them distinct", present.Count(r.DistinctBlocks)))
	share("hits", r.PrefixHits, "found by prefix and loaded, "+present.Bytes(r.BytesVerified))
	for _, tier := range slices.Sorted(maps.Keys(r.HitsByTier)) {
		share("  from "+tier, r.HitsByTier[tier], "")
	}
	share("misses", r.BlockAccesses-r.PrefixHits, fmt.Sprintf("computed; dumped: %s new, %s already stored", present.Count(r.DumpedBlocks), present.Count(r.SkippedBlocks)))
	return t
}

func (r *Report) latencies(p *present.Page) {
	t := &present.Table{Head: []string{"per request", "p50", "p99"}, Right: " rr"}
	row := func(name string, l Latency, means string) {
		if l == (Latency{}) {
			return // no samples
		}
		t.Row(name, present.Micros(float64(l.P50)), present.Micros(float64(l.P99)))
		p.Define(name, means)
	}
	row("load", r.LoadUS, "from the call of Load for a request's hits until the last block is verified on its page")
	row("dump", r.DumpUS, "from the call of Dump for its misses until the pages may be reused")
	row("durable", r.DurableUS, "from the same call until every block is durable, as defined by its tier")
	row("lag", r.LagUS, "from the request's time in the trace until its start; a higher --concurrency shortens it")
	p.Table(t)
}

func (r *Report) paths(p *present.Page) {
	if len(r.Paths) == 0 {
		return
	}
	p.Heading("Copies by path")
	t := &present.Table{Head: []string{"path", "way", "bytes", "GB/s", "expected", "summed", "why"}, Keys: 2, Right: "  rrrr"}
	var why []string
	for i := range r.Paths {
		c := &r.Paths[i]
		expected, letter := "-", "-"
		if c.Predicted > 0 {
			expected = present.Rate(c.GBps / c.Predicted)
		}
		if c.Reason != "" {
			if !slices.Contains(why, c.Reason) {
				why = append(why, c.Reason)
			}
			letter = footnote(slices.Index(why, c.Reason))
		}
		t.Row(c.Path, c.Direction, present.Bytes(c.Bytes), present.Rate(c.GBps), expected, fmt.Sprintf("%.0f%%", 100*rate(c.Summed, float64(c.Bytes))), letter)
	}
	p.Table(t)
	p.Define("GB/s", "over the time in which the path copied")
	p.Define("expected", "the predicted GB/s, by which the path was chosen")
	p.Define("summed", "share of the bytes with checksums computed by the copy; the CPU computes the others")
	for i, reason := range why {
		p.Define(footnote(i), reason)
	}
}

// footnote returns the label of reason i: a letter, or two letters from i = 26 on.
func footnote(i int) string {
	if i >= 26 {
		return string(rune('a'+i/26-1)) + string(rune('a'+i%26))
	}
	return string(rune('a' + i))
}

func (r *Report) tiers(p *present.Page) {
	if len(r.Tiers) == 0 {
		return
	}
	p.Heading("Tiers")
	t := &present.Table{Head: []string{"tier", "blocks", "bytes", "of", "read", "written", "evicted"}, Right: " rrrrrrrrr"}
	trouble := []struct {
		name string
		of   func(*TierReport) int64
	}{
		{"corrupt", func(s *TierReport) int64 { return s.Corrupt }},
		{"errors", func(s *TierReport) int64 { return s.Errors }},
		{"swept", func(s *TierReport) int64 { return s.Swept }},
	}
	for i := range r.Tiers {
		s := &r.Tiers[i]
		of := "no bound"
		if s.CapacityBytes > 0 {
			of = present.Bytes(s.CapacityBytes)
		}
		t.Row(s.Name, present.Count(s.Blocks), present.Bytes(s.Bytes), of, present.Bytes(s.ReadBytes), present.Bytes(s.WrittenBytes), present.Count(s.Evictions))
	}
	for _, k := range trouble {
		if !slices.ContainsFunc(r.Tiers, func(s TierReport) bool { return k.of(&s) > 0 }) {
			continue
		}
		t.Head = append(t.Head, k.name)
		for i := range r.Tiers {
			t.Rows[i] = append(t.Rows[i], present.Count(k.of(&r.Tiers[i])))
		}
	}
	p.Table(t)
}

// checks adds the result of every check.
func (r *Report) checks(p *present.Page) {
	check := func(bad present.Mark, n int64, good, format string, args ...any) {
		if n == 0 {
			p.Check(present.Good, "%s", good)
		} else {
			p.Check(bad, format, args...)
		}
	}
	stopped := int64(1)
	if r.Complete {
		stopped = 0
	}
	check(present.Bad, stopped, "all requests replayed", "stopped early, after %s", present.Things(r.Requests, "request"))
	if r.PrefixHits+r.LoadErrors == 0 {
		p.Check(present.Plain, "no loaded bytes to verify")
	} else {
		r.checkLoads(p, check)
	}
	check(present.Bad, r.DumpErrors+r.DurableErrors, "all dumped blocks stored", "%s not stored, %s not durable",
		present.Things(r.DumpErrors, "block"), present.Things(r.DurableErrors, "dump"))
	shown := min(len(r.ErrorSamples), shownSamples)
	for _, e := range r.ErrorSamples[:shown] {
		p.Check(present.Warn, "failure: %s", e)
	}
	if more := max(r.failures, len(r.ErrorSamples)) - shown; more > 0 {
		p.Check(present.Warn, "and %s more", present.Count(int64(more)))
	}
	for _, t := range r.Thresholds {
		mark := present.Good
		if !t.Met {
			mark = present.Bad
		}
		p.Check(mark, "%s (%s)", t.Threshold, t.valueText)
	}
}

func (r *Report) checkLoads(p *present.Page, check func(bad present.Mark, n int64, good, format string, args ...any)) {
	check(present.Bad, r.Mismatches, fmt.Sprintf("no wrong byte in %s, compared on the device", present.Bytes(r.BytesVerified)),
		"%s held wrong bytes, %s of them", present.Things(r.Mismatches, "loaded block"), present.Count(r.MismatchedBytes))
	for _, m := range r.MismatchSamples {
		p.Check(present.Bad, "wrong bytes: %s", m)
	}
	check(present.Warn, r.Corrupt, fmt.Sprintf("no stored block damaged: checksums of %s verified by copies, of %s by the CPU",
		present.Count(r.VerifiedOnWay), present.Count(r.VerifiedByCPU)), "%s failed their check and became misses", present.Things(r.Corrupt, "stored block"))
	check(present.Warn, r.LoadErrors, "all found blocks were loaded", "%s not loaded, but computed", present.Things(r.LoadErrors, "block"))
	if r.BadCopies > 0 {
		p.Check(present.Warn, "%s copies to pages failed their check and were repeated", present.Count(r.BadCopies))
	}
}

// rate returns n divided by d, or 0 if d is 0.
func rate(n int64, d float64) float64 {
	if d == 0 {
		return 0
	}
	return float64(n) / d
}
