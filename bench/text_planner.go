package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// shownRegrets is the number of the planner's worst points that the text shows.
const shownRegrets = 12

// MaxLost and MaxBeaten are limits for Regret.Lost and Regret.Beaten. Points above them are
// counted.
const (
	MaxLost   = 0.10
	MaxBeaten = 0.03
)

// planner writes the points at which automatic choice lost most.
func (r *Report) planner(p *present.Page) {
	all := r.Regrets()
	if len(all) == 0 {
		return
	}
	lost, chance, beaten := 0, 0, 0
	for i := range all {
		if l := &all[i]; l.Lost > MaxLost {
			lost++
			if l.Chance() {
				chance++
			}
		}
		if all[i].Beaten > MaxBeaten {
			beaten++
		}
	}
	p.Heading("The stream's own choice, turn against turn: at %d of %s more than %.0f%% slower than the best single path (at %d of them it was that path), at %d more than %.0f%% slower than a baseline. The worst:",
		lost, present.Things(int64(len(all)), "point"), 100*MaxLost, chance, beaten, 100*MaxBeaten)
	slices.SortStableFunc(all, func(x, y Regret) int { return cmp.Compare(max(y.Lost, y.Beaten), max(x.Lost, x.Beaten)) })
	t := &present.Table{Head: []string{"blocks", "way", "host", "chosen", "best", "lost, %", "baseline", "foreseen"}, Keys: 3, Right: "     rrr"}
	for _, l := range all[:min(len(all), shownRegrets)] {
		t.Row(l.cell(), string(l.Direction), strings.TrimPrefix(string(l.Layout), "host "), l.Traveled, l.Best, fmt.Sprintf("%.1f", 100*l.Lost), fmt.Sprintf("%.2f", 1-l.Beaten), ratioText(l.Predicted))
	}
	p.Table(t)
	p.Define("lost", "of the rate of the best single path")
	p.Define("baseline", "the rate as a multiple of the faster baseline's")
	p.Define("foreseen", "the time that the stream predicted, as a multiple of the actual one")
	predictions(p, all)
}

// predictions writes the accuracy of predicted times.
func predictions(p *present.Page, all []Regret) {
	var ratios []float64
	for _, l := range all {
		if l.Predicted > 0 {
			ratios = append(ratios, l.Predicted)
		}
	}
	if len(ratios) > 0 {
		p.Gap()
		p.Text("Predicted over actual time at %s: median %.2f, from %.2f (5%%) to %.2f (95%%)",
			present.Things(int64(len(ratios)), "point"), measure.Median(ratios), measure.Quantile(ratios, 0.05), measure.Quantile(ratios, 0.95))
	}
}

func ratioText(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// peers writes the results of copies between two devices.
func (r *Report) peers(p *present.Page) {
	if r.Peers == nil {
		return
	}
	p.Heading("Between two devices, by streams of the first; the second is %s", present.Name(r.Peers.Device))
	p.Text("h2d pulls from its memory, d2h pushes to it. C: %s", r.Peers.Reference.Text())
	between := &Report{Points: r.Peers.Points}
	for _, layout := range peerLayouts {
		for _, d := range []Direction{ToDevice, ToHost} {
			r.bandwidths(p, between.BySize(d, layout), fmt.Sprintf("Between devices, %s, %s", layout, map[Direction]string{ToDevice: "pull", ToHost: "push"}[d]))
		}
	}
}
