package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// Change is the difference of a point in two reports.
type Change struct {
	Path string
	Cell
	Direction Direction
	Layout    Layout
	Old, New  float64 // GB/s
	// Share is New/Old - 1. A smaller absolute Share than Noise may be chance. Noise is the larger
	// of Compare's argument and the sum of half the interquartile ranges of both points, each
	// relative to its median.
	Share, Noise float64
}

// Real reports whether the change exceeds the noise.
func (c *Change) Real() bool { return c.Share > c.Noise || -c.Share > c.Noise }

// Comparison is the difference between a report and an earlier one.
type Comparison struct {
	Notes   []string // reasons for which the reports may not be comparable
	Changes []Change // changes of points in both reports, worst first
	Gone    int      // points only in the earlier report
	Added   int      // points only in the later report
}

// Compare compares the points of a report with those of an earlier one. noise is the minimum
// relative change that is significant.
func (r *Report) Compare(earlier *Report, noise float64) *Comparison {
	c := new(Comparison)
	differ := func(what, was, is string) {
		if was != is {
			c.Notes = append(c.Notes, fmt.Sprintf("%s was %s and is %s", what, was, is))
		}
	}
	if earlier.Incomplete != "" {
		c.Notes = append(c.Notes, "the earlier run is incomplete: "+earlier.Incomplete)
	}
	differ("the device", earlier.Machine.Device, r.Machine.Device)
	differ("the driver", earlier.Machine.DriverVersion, r.Machine.DriverVersion)
	differ("the form of batches", string(earlier.Setup.Form), string(r.Setup.Form))
	differ("the length of batches", strconv.Itoa(earlier.Setup.BatchBlocks), strconv.Itoa(r.Setup.BatchBlocks))
	differ("the longest call of the driver's batched copy", strconv.Itoa(earlier.Setup.DriverCall), strconv.Itoa(r.Setup.DriverCall))
	differ("paths that auto could not use", strings.Join(earlier.Setup.Without, ", "), strings.Join(r.Setup.Without, ", "))
	differ("the length of slots", BytesText(earlier.Setup.SlotBytes), BytesText(r.Setup.SlotBytes))
	differ("the pool", BytesText(earlier.Setup.PoolBytes), BytesText(r.Setup.PoolBytes))
	for _, d := range []Direction{ToDevice, ToHost, Both} {
		was, is := earlier.Reference.Of(d).GBps, r.Reference.Of(d).GBps
		if was > 0 && is > 0 && max(is/was, was/is)-1 > noise {
			c.Notes = append(c.Notes, fmt.Sprintf("one large copy, %s, was %.1f GB/s and is %.1f", directionTexts[d], was, is))
		}
	}
	type key struct {
		path string
		Cell
		d Direction
		l Layout
	}
	keyOf := func(p *Point) key { return key{p.Path, p.Cell, p.Direction, p.Layout} }
	old := make(map[key]*Point)
	for i := range earlier.Points {
		old[keyOf(&earlier.Points[i])] = &earlier.Points[i]
	}
	c.Gone = len(old)
	for i := range r.Points {
		p := &r.Points[i]
		was := old[keyOf(p)]
		if was == nil {
			c.Added++
			continue
		}
		c.Gone--
		ch := Change{Path: p.Path, Cell: p.Cell, Direction: p.Direction, Layout: p.Layout, Old: was.GBps, New: p.GBps}
		ch.Noise = max(noise, was.spread()+p.spread())
		if was.GBps > 0 {
			ch.Share = p.GBps/was.GBps - 1
		}
		c.Changes = append(c.Changes, ch)
	}
	slices.SortStableFunc(c.Changes, func(a, b Change) int { return cmp.Compare(a.Share, b.Share) })
	return c
}

func (p *Point) spread() float64 {
	if p.GBps <= 0 {
		return 0
	}
	return (p.HighGBps - p.LowGBps) / 2 / p.GBps
}

// Worse returns the number of points that became slower by more than share and more than the noise.
func (c *Comparison) Worse(share float64) int {
	n := 0
	for i := range c.Changes {
		if ch := &c.Changes[i]; ch.Real() && -ch.Share > share {
			n++
		}
	}
	return n
}

// Unjudged returns a message about points of the earlier report that are missing in this one, or
// "".
func (c *Comparison) Unjudged() string {
	if c.Gone == 0 {
		return ""
	}
	return fmt.Sprintf("%[2]d of %[1]d points of the earlier run were not measured, so not compared", c.Gone+len(c.Changes), c.Gone)
}

// WriteText writes the significant changes and the number of other points.
func (c *Comparison) WriteText(w io.Writer) error {
	slower, faster := 0, 0
	for i := range c.Changes {
		switch ch := &c.Changes[i]; {
		case !ch.Real():
		case ch.Share < 0:
			slower++
		default:
			faster++
		}
	}
	p, mark := present.NewPage(present.ScreenOf(w)), present.Good
	if slower > 0 {
		mark = present.Warn
	}
	p.Verdict(mark, "Compared with the earlier run: of %d points %d slower, %d faster, the rest within noise; %d new, %d gone",
		len(c.Changes), slower, faster, c.Added, c.Gone)
	if n := c.Unjudged(); n != "" {
		p.Check(present.Warn, "%s", n)
	}
	for _, n := range c.Notes {
		p.Check(present.Warn, "%s", n)
	}
	t := &present.Table{Head: []string{"path", "blocks", "way", "layout", "before", "now", "change", "noise"}, Keys: 2, Right: "    rrrr"}
	for i := range c.Changes {
		if ch := &c.Changes[i]; ch.Real() {
			t.Row(ch.Path, ch.cell(), string(ch.Direction), string(ch.Layout), present.Rate(ch.Old), present.Rate(ch.New),
				fmt.Sprintf("%+.1f%%", 100*ch.Share), present.Percent(ch.Noise))
		}
	}
	if len(t.Rows) > 0 {
		p.Gap()
		p.Table(t)
		p.Define("before, now", "GB/s")
		p.Define("noise", "differences within chance")
	}
	return p.Write(w)
}
