package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

// shownRegrets is how many of the planner's worst points are shown.
const shownRegrets = 12

// Bounds of what the stream's own choice may lose, as shares of the best single path's rate and of the faster baseline's.
const (
	MaxLost   = 0.10
	MaxBeaten = 0.03
)

// planner writes where the stream's own choice loses most.
func (r *Report) planner(b *strings.Builder) {
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
	fmt.Fprintf(b, "\nThe stream's own choice, turn against turn: at %d of %d points more than %.0f%% slower than the best single path (at %d of them it was that path), at %d more than %.0f%% slower than a baseline. The worst:\n\n",
		lost, len(all), 100*MaxLost, chance, beaten, 100*MaxBeaten)
	slices.SortStableFunc(all, func(x, y Regret) int { return cmp.Compare(max(y.Lost, y.Beaten), max(x.Lost, x.Beaten)) })
	tw := newTable(b, "cell")
	tw.put("| direction\t| layout\t| chosen\t| best\t| lost %%\t| x faster baseline\t| predicted / actual\t")
	tw.rule(7)
	for _, l := range all[:min(len(all), shownRegrets)] {
		tw.put("| %d x %s\t| %s\t| %s\t| %s\t| %s\t| %.1f\t| %.2f\t| %s\t|\n", l.Count, BytesText(l.Size), l.Direction, l.Layout,
			l.Traveled, l.Best, 100*l.Lost, 1-l.Beaten, ratioText(l.Predicted))
	}
	tw.end()
	r.predictions(b, all)
}

// predictions writes how well the stream foresaw its own times.
func (r *Report) predictions(b *strings.Builder, all []Regret) {
	var ratios []float64
	for _, l := range all {
		if l.Predicted > 0 {
			ratios = append(ratios, l.Predicted)
		}
	}
	if len(ratios) > 0 {
		fmt.Fprintf(b, "\nPredicted over actual time at %d points: median %.2f, from %.2f (5%%) to %.2f (95%%)\n",
			len(ratios), measure.Median(ratios), measure.Quantile(ratios, 0.05), measure.Quantile(ratios, 0.95))
	}
}

func ratioText(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// peers writes what lies between two devices.
func (r *Report) peers(b *strings.Builder) {
	p := r.Peers
	if p == nil {
		return
	}
	fmt.Fprintf(b, "\nBetween two devices, by streams of the first; the second is %s; h2d pulls from its memory, d2h pushes to it. C: %s\n", p.Device, p.Reference.text())
	between := &Report{Points: p.Points}
	for _, layout := range peerLayouts {
		for _, d := range []Direction{ToDevice, ToHost} {
			r.bandwidths(b, between.BySize(d, layout), fmt.Sprintf("Between devices, %s, %s", layout, map[Direction]string{ToDevice: "pull", ToHost: "push"}[d]))
		}
	}
}
