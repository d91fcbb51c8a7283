package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// The short report has the fastest path of one block and of manyBlocks, at shownSizes sizes.
const (
	shownSizes = 5
	manyBlocks = 1024
)

// WriteText prints the report as text, with every figure if full is set.
func (r *calibrateReport) WriteText(w io.Writer, full bool) error {
	p := present.NewPage(present.ScreenOf(w))
	r.verdict(p)
	if full {
		r.writeModels(p)
		r.writeChoices(p)
	} else {
		r.writeFastest(p)
		p.Gap()
		p.Text("--full shows every figure, and the choices of each policy.")
	}
	p.Define("h2d", "host to device")
	p.Define("d2h", "device to host")
	return p.Write(w)
}

func (r *calibrateReport) verdict(p *present.Page) {
	k := &r.Profile
	how := fmt.Sprintf("its profile of %s is in use", k.Made.Format(time.RFC3339))
	if r.Measured {
		how = fmt.Sprintf("measured in %s over %s", present.Duration(time.Duration(r.Millis)*time.Millisecond), present.Size(r.Bytes))
	}
	if k.Source != "measured" {
		how += " (" + k.Source + ")"
	}
	p.Verdict(present.Good, "%s: %s. One large copy: %s GB/s to the device, %s GB/s to the host.", k.Key, how,
		present.Rate(k.GBps[plan.H2D]), present.Rate(k.GBps[plan.D2H]))
	if r.Loaded != "" {
		p.Verdict(present.Warn, "The GPU or its link was in use: %s.", r.Loaded)
	}
	switch {
	case r.Stored:
		p.Text("Stored in %s", r.File)
	case k.Source == calibrate.SourceSimulated:
		p.Text("Not stored: profiles of simulated devices are not stored")
	default:
		p.Text("Not stored; its place is %s", r.File)
	}
	for _, m := range r.Missing {
		p.Check(present.Warn, "not measured: %s (%s)", m.Path, m.Reason)
	}
}

// writeFastest prints the fastest path by size.
func (r *calibrateReport) writeFastest(p *present.Page) {
	var sizes []int64
	for i := range shownSizes {
		size := r.Profile.Sizes[i*(len(r.Profile.Sizes)-1)/(shownSizes-1)]
		if !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
	}
	p.Heading("Fastest path by size of scattered blocks")
	t := &present.Table{Head: []string{"way", "blocks"}, Keys: 2, Right: " r"}
	for _, size := range sizes {
		t.Head = append(t.Head, present.Size(size))
	}
	for _, way := range []plan.Direction{plan.H2D, plan.D2H} {
		for _, count := range []int{1, manyBlocks} {
			row := []string{way.String(), present.Count(int64(count))}
			for _, size := range sizes {
				i := slices.IndexFunc(r.Choices, func(c plannedChoice) bool {
					return c.Policy == plan.Throughput.String() && c.Host == plan.Scattered.String() && c.Dir == way.String() && c.Size == size && c.Count == count
				})
				row = append(row, r.Choices[i].Path) // every combination has a choice
			}
			t.Row(row...)
		}
	}
	p.Table(t)
}

// writeModels prints the measurements of each path.
func (r *calibrateReport) writeModels(p *present.Page) {
	k := &r.Profile
	most := len(k.Counts) - 1
	key := []string{"path", "CTAs", "way", "host"}
	table := func() *present.Table {
		return &present.Table{Head: slices.Clone(key), Keys: len(key), Right: " r  rrrrrrrrrrrrrrrrrrrrrr"}
	}
	facts, times, rates := table(), table(), table()
	facts.Head = append(facts.Head, "spread", "points", "overlap", "opposed")
	for _, size := range k.Sizes {
		times.Head = append(times.Head, present.Size(size))
		rates.Head = append(rates.Head, present.Size(size))
	}
	for i := range k.Models {
		m := &k.Models[i]
		if m.Points == 0 {
			continue // not measured: from the built-in profile
		}
		row := []string{m.Path.String(), fmt.Sprint(m.CTAs), m.Dir.String(), m.Side.String()}
		facts.Row(append(slices.Clone(row), present.Percent(m.Spread), fmt.Sprint(m.Points), present.Micros(m.Lead/1e3),
			fmt.Sprintf("%.0f%%", 100*m.Duplex*k.GBps[m.Dir]))...)
		one, many := slices.Clone(row), slices.Clone(row)
		for at, size := range k.Sizes {
			of := m.Times[at*len(k.Counts):][:len(k.Counts)]
			one = append(one, present.Micros(of[0]/1e3))
			many = append(many, present.Rate(gbps(k.Counts[most]*size, of[most])))
		}
		times.Row(one...)
		rates.Row(many...)
	}
	p.Heading("Measured times")
	p.Table(facts)
	p.Heading("Time of one copy, by size")
	p.Table(times)
	p.Heading("GB/s of %s copies, by size", present.Count(k.Counts[most]))
	p.Table(rates)
	p.Define("CTAs", "thread blocks that the path's kernel occupies; 0: the path has no kernel")
	p.Define("host", "placement of the blocks in host memory: contiguous or scattered")
	p.Define("spread", "spread of repeated measurements, relative to their median")
	p.Define("points", "sizes and counts that were measured")
	p.Define("overlap", "share of a batch's time that overlaps the previous batch")
	p.Define("opposed", "additional time per byte with equal opposite traffic, as a share of its time in one large copy")
	p.Define("d2d", "device to device")
	p.Define("peer", "from another device")
}

// writeChoices prints the choices of each policy.
func (r *calibrateReport) writeChoices(p *present.Page) {
	type title struct{ policy, dir, host string }
	var last title
	var t *present.Table
	for i := range r.Choices {
		c := &r.Choices[i]
		if now := (title{c.Policy, c.Dir, c.Host}); now != last {
			if t != nil {
				p.Table(t)
			}
			last = now
			p.Heading("Chosen for %s, %s, host %s, by size and number of blocks: path/CTAs, time, GB/s", c.Policy, c.Dir, c.Host)
			t = &present.Table{Head: []string{"size"}, Right: "r"}
			for _, n := range choiceCounts {
				t.Head = append(t.Head, present.Count(int64(n)))
			}
		}
		if c.Count == choiceCounts[0] {
			t.Row(present.Size(c.Size))
		}
		row := &t.Rows[len(t.Rows)-1]
		*row = append(*row, fmt.Sprintf("%s/%d %s %s", c.Path, c.CTAs, present.Micros(c.Micros), present.Rate(c.GBps)))
	}
	if t != nil {
		p.Table(t)
	}
}
